// Element types of tensors. Numbers are little-endian, bool is one byte that is 0 or 1, as ONNX's
// raw_data holds them. float16 and bfloat16 are storage types (IEEE 754 binary16; the upper half of
// a binary32): arithmetic is done in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/namespaces.h"

namespace ofsdp::kernels {

enum class DType : uint8_t {
  kUndefined,
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kFloat8E4M3FN,  // from here on: narrow_types.h
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0,
  kFloat4E2M1,
  kInt4,
  kUInt4,
  kInt2,
  kUInt2,
};
inline constexpr size_t kDTypes = static_cast<size_t>(DType::kUInt2) + 1;

size_t dtype_size(DType dtype);            // bytes of an element in memory; 0 for kUndefined
std::string_view dtype_name(DType dtype);  // "float32", ...
std::optional<DType> dtype_from_name(std::string_view name);
int64_t number_of_dtype(DType dtype);   // in onnx.proto's TensorProto.DataType
DType dtype_of_number(int64_t number);  // kUndefined if it is none of ours
bool is_floating(DType dtype);
bool is_integer(DType dtype);  // signed and unsigned, not bool
constexpr bool is_narrow(DType dtype) { return dtype > DType::kBool; }
constexpr bool is_16_bit_float(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}
constexpr bool is_32_or_16_bit_float(DType dtype) {
  return dtype == DType::kFloat32 || is_16_bit_float(dtype);
}

}  // namespace ofsdp::kernels
