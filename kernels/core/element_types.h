// Calls a function with the C++ type that a dtype is stored as.
//
//   with_number(dtype, f)  f(T{}) for every type C++ can compute with: all but the 16-bit floats,
//                          which go through kernels/cpu/in_float32.h, and the narrow types
//                          (is_number tells them apart)
//   with_bits(bytes, f)    f(T{}) with the unsigned type of that size, for elements that are only
//                          moved
//
// REQUIRES: one of these types.
#pragma once

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

inline bool is_number(DType dtype) {
  return dtype != DType::kUndefined && !is_16_bit_float(dtype) && !is_narrow(dtype);
}

auto with_number(DType dtype, const auto& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    case DType::kUInt32:
      return f(uint32_t{});
    case DType::kUInt64:
      return f(uint64_t{});
    default:
      OFSDP_CHECK(dtype == DType::kBool, "no number of type {}", dtype_name(dtype));
      return f(bool{});
  }
}

auto with_bits(size_t bytes, const auto& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      OFSDP_CHECK(bytes == 8, "no element of {} bytes", bytes);
      return f(uint64_t{});
  }
}

// As with_number for float64, float32 and integers with results that wrap: signed ones share the
// type, and so the bits, of unsigned ones.
auto with_wrapping_number(DType dtype, const auto& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    default:
      OFSDP_CHECK(is_integer(dtype), "no integer type {}", dtype_name(dtype));
      return with_bits(dtype_size(dtype), f);
  }
}

}  // namespace ofsdp::kernels
