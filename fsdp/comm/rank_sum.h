// Sums and conversions of gradients. `dst` must not overlap a source. Never allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/dtype.h"

namespace ofsdp::fsdp {

// dst[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ... in float32, in that order for every element,
// so the bits depend neither on the rank that sums nor on the blocks. Sources of 16 bits are
// widened first. If `onto` is given, the sum starts from onto[i]; it may be dst.
void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, int64_t numel,
                       float* dst, const float* onto = nullptr);

// dst[i] += src[i].
void add_elements(const std::byte* src, DType from, float* dst, int64_t numel);

// Rounds to the nearest value of `to`, ties to even.
void round_elements(float* values, DType to, int64_t numel);

// Converts between float32 and a 16-bit float. Copies if the types are equal, unless dst is src.
void convert_elements(const std::byte* src, DType from, std::byte* dst, DType to, int64_t numel);

}  // namespace ofsdp::fsdp
