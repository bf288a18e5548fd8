// Integers of a file: read, dequantized to a weight's values, and quantized back.
//
//   value = (q - zero_point) * scale
//   q     = round(value / scale) + zero_point, half to even, clipped to the type's range
//
// The rounding is that of ofsdp.FakeQuantize, so written integers are what forward computed with.
// Values of an int32 bias are divided in double.
//
// Threads: any. Errors: kFault of the disk.
#pragma once

#include <span>
#include <vector>

#include "importer/file/initializer.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

// The type of integers that TensorProto.DataType names as far as a weight or a zero point may have
// it; kUndefined: none. int4 and uint4 are int8 and uint8 of 4 bits.
DType integer_carrier(int onnx_type);
std::string integer_name(int onnx_type);  // "int4"; "type 7" of others

Status read_integers(const OpenFile& file, const Initializer& place, int64_t first,
                     std::span<int64_t> dst);

// Elements `first` ... as values, from their integers.
void dequantize(const Quantization& q, int64_t first, std::span<const int64_t> integers,
                std::span<float> dst);
void requantize(const Quantization& q, int64_t first, std::span<const float> src,
                std::span<int64_t> integers);

// `integers` as the bytes of `place`; an even `first` where two elements share a byte.
std::vector<std::byte> integer_bytes(const Initializer& place, std::span<const int64_t> integers);

}  // namespace ofsdp::importer
