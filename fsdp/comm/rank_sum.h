// The sum of gradients over ranks: dst[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ... in float32,
// in that order for every element, so the bits do not depend on who sums or in which blocks.
//
// Sources of 16 bits are widened first. With `onto` the sum starts from its elements: onto[i] +
// src[0][i] + ...; it may be dst.
//
// convert_elements copies where the types are the same; a copy onto itself is none.
//
// `dst` must not overlap a source. Ownership: none. Threads: any. Never allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/dtype.h"

namespace ofsdp::fsdp {

void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, int64_t numel,
                       float* dst, const float* onto = nullptr);

// dst[i] += src[i].
void add_elements(const std::byte* src, DType from, float* dst, int64_t numel);

// The nearest value that `to` holds, ties to even.
void round_elements(float* values, DType to, int64_t numel);

// float32 and the 16-bit floats, in every pair with float32.
void convert_elements(const std::byte* src, DType from, std::byte* dst, DType to, int64_t numel);

}  // namespace ofsdp::fsdp
