// Converts floating-point elements of a file to and from float32. Rounds to 16-bit types to nearest
// even, and to float64 as the processor does. `stride`: bytes from element to element; dtype_size
// if dense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "importer/file/onnx_file.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"

namespace ofsdp::importer {

void decode_floats(DType dtype, const std::byte* src, int64_t stride, std::span<float> dst);
void encode_floats(DType dtype, std::span<const float> src, int64_t stride, std::byte* dst);

// Integers of a file: reads them, dequantizes them to the values of a weight, and quantizes values
// back.
//
//   value = (q - zero_point) * scale
//   q     = round(value / scale) + zero_point, half to even, clipped to the range of the type
//
// ofsdp.FakeQuantize rounds in the same way, so forward uses the same integers. Values
// of an int32 bias are divided in double.
//
// Errors: kFault for the disk.

// Returns the type that holds integers of a TensorProto.DataType, if a weight or a zero point may
// have it; else kUndefined. int4 and uint4 are int8 and uint8 with 4 bits.
DType integer_carrier(int onnx_type);
std::string integer_name(int onnx_type);  // "int4"; "type 7" if it has no name

Status read_integers(const OpenFile& file, const Initializer& place, int64_t first,
                     std::span<int64_t> dst);

// Dequantizes integers to the values of elements `first` ...
void dequantize(const Quantization& q, int64_t first, std::span<const int64_t> integers,
                std::span<float> dst);
void requantize(const Quantization& q, int64_t first, std::span<const float> src,
                std::span<int64_t> integers);

// Returns `integers` as bytes of `place`. REQUIRES: `first` is even if two elements share a byte.
std::vector<std::byte> integer_bytes(const Initializer& place, std::span<const int64_t> integers);

}  // namespace ofsdp::importer
