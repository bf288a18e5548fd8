// Floating-point elements as a file has them, to and from float32. Sixteen-bit types are rounded to
// nearest even, float64 as the processor rounds.
//
// `stride` is the bytes from element to element; dtype_size for dense ones.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/dtype.h"

namespace ofsdp::importer {

void decode_floats(DType dtype, const std::byte* src, int64_t stride, std::span<float> dst);
void encode_floats(DType dtype, std::span<const float> src, int64_t stride, std::byte* dst);

}  // namespace ofsdp::importer
