// The sum of gradients over ranks: dst[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ... in float32,
// in that order for every element, so the bits do not depend on who sums or in which blocks.
//
// `dst` must not overlap a source. Ownership: none. Threads: any. Never allocates.
#pragma once

#include <cstdint>
#include <span>

namespace ofsdp {

void sum_in_rank_order(std::span<const float* const> sources, int64_t numel, float* dst);

}  // namespace ofsdp
