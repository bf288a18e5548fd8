// Conversions between float32 and the 16-bit floats, without a branch: mixed precision runs them
// over every parameter and gradient. To 16 bits: to nearest, ties to even; NaN stays NaN.
//
// width_span(from, to) is the loop over [begin, end) of two arrays; null for other pairs, also from
// a type to itself. `widen` and `narrow` are the same from element 0. The results equal
// float_to_half and the like (kernels/core/tensor.h) bit for bit.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

using WidthSpan = void (*)(const void* src, void* dst, int64_t begin, int64_t end);

WidthSpan width_span(DType from, DType to);

void widen(DType from, const void* src, float* dst, int64_t numel);
void narrow(const float* src, DType to, void* dst, int64_t numel);

}  // namespace ofsdp::kernels
