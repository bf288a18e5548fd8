// Conversions between float32 and the 16-bit floats, without a branch: those of mixed precision,
// which run over every parameter and gradient. To 16 bits: to nearest, ties to even; NaN stays NaN.
//
// width_span(from, to) is the loop over [begin, end) of two arrays, or null where the pair is none
// of these; from one type to itself there is none. `widen` and `narrow` are the same from element
// 0. The results are those of float_to_half and its like (kernels/core/tensor.h), bit for bit.
//
// Ownership: none. Threads: any. Errors: none.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

using WidthSpan = void (*)(const void* src, void* dst, int64_t begin, int64_t end);

WidthSpan width_span(DType from, DType to);

void widen(DType from, const void* src, float* dst, int64_t numel);
void narrow(const float* src, DType to, void* dst, int64_t numel);

}  // namespace ofsdp::kernels
