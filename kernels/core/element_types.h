// Calls a function with the C++ type in which a dtype is stored.
//
//   with_number(dtype, f)  f(T{}) for every type C++ can compute with: not the 16-bit floats, which
//                          go through kernels/cpu/float_kernels.h, nor narrow types (see is_number)
//   with_bits(bytes, f)    f(T{}) with the unsigned type of this many bytes, to move elements
//
// REQUIRES: there is such a type.
#pragma once

#include <type_traits>

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

// As with_number, for float64, float32 and integers with wrapping results: signed integers run as
// unsigned ones, which gives the same bits.
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

// Integer arithmetic that wraps instead of being undefined (ONNX leaves overflow open), for Add,
// Sub, Mul, Neg, ...; floats pass through unchanged.
template <typename T, typename F>
[[gnu::always_inline]] constexpr T wrapping(T a, T b, const F& f) {
  if constexpr (std::is_integral_v<T>) {
    // Small types would promote to int, where overflow is undefined.
    using U = std::conditional_t<sizeof(T) < sizeof(unsigned), unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

}  // namespace ofsdp::kernels
