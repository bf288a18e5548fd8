// 16-bit floats as C++ types, for loops that read and write them without a float32 array in
// between, and conversions for whole arrays.
//
//   RealOf<T>       the type in which T computes: double for double, else float
//   as_float(x)     a float, BFloat16 or Half as float32: exact, without a branch
//   as_real(x)      the same, and a double as it is
//   stored<T>(v)    a RealOf<T> rounded to T: to nearest, ties to even; NaN stays NaN
//
// They do nothing to float and double, so loops over these keep their bits. dtype_of<T>() gives any
// type's dtype; with_stored_float(dtype, f) calls f(T{}) with the type for float32, bfloat16 or
// float16.
//
// REQUIRES: the caller is an OFSDP_MULTIARCH function.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/base/status.h"
#include "kernels/core/dtype.h"

namespace ofsdp::kernels {

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

[[gnu::always_inline]] inline float as_float(float x) { return x; }

[[gnu::always_inline]] inline float as_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// The product corrects the exponent, subnormals included.
[[gnu::always_inline]] inline float as_float(Half x) {
  const uint32_t bits = x.bits;
  const uint32_t magnitude = (bits & 0x7fffu) << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t value = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
  return std::bit_cast<float>((bits & 0x8000u) << 16 | value);
}

template <typename T>
using RealOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
[[gnu::always_inline]] inline RealOf<T> as_real(T x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return as_float(x);
  }
}

template <typename T>
[[gnu::always_inline]] inline T stored(RealOf<T> x);

template <>
[[gnu::always_inline]] inline double stored<double>(double x) {
  return x;
}

template <>
[[gnu::always_inline]] inline float stored<float>(float x) {
  return x;
}

template <>
[[gnu::always_inline]] inline BFloat16 stored<BFloat16>(float value) {
  const auto x = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (x + 0x7fffu + ((x >> 16) & 1u)) >> 16;
  const uint32_t nan = (x >> 16) | 0x40u;
  return {static_cast<uint16_t>((x & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

// Computes all three cases and chooses one.
template <>
[[gnu::always_inline]] inline Half stored<Half>(float value) {
  const auto x = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (x >> 16) & 0x8000u;
  const uint32_t magnitude = x & 0x7fffffffu;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? small - 0x3f000000u : normal;
  return {static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? large : finite))};
}

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::kBFloat16;
  if constexpr (std::is_same_v<T, Half>) return DType::kFloat16;
  if constexpr (std::is_same_v<T, int8_t>) return DType::kInt8;
  if constexpr (std::is_same_v<T, int16_t>) return DType::kInt16;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kUInt8;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::kUInt16;
  if constexpr (std::is_same_v<T, uint32_t>) return DType::kUInt32;
  if constexpr (std::is_same_v<T, uint64_t>) return DType::kUInt64;
  if constexpr (std::is_same_v<T, bool>) return DType::kBool;
  return DType::kUndefined;
}

auto with_stored_float(DType dtype, const auto& f) {
  if (dtype == DType::kBFloat16) return f(BFloat16{});
  if (dtype == DType::kFloat16) return f(Half{});
  OFSDP_CHECK(dtype == DType::kFloat32, "no float type {}", dtype_name(dtype));
  return f(float{});
}

// Converts arrays between float32 and 16-bit floats, without a branch: mixed precision does so for
// every parameter and gradient. To 16 bits: to nearest, ties to even; NaN stays NaN. The bits equal
// those from float_to_half and the like (kernels/core/dtype.h).
//
// width_span(from, to) returns a loop over [begin, end) in two arrays; null for other pairs, also
// from a type to itself. `widen` and `narrow` convert from element 0 on.

using WidthSpan = void (*)(const void* src, void* dst, int64_t begin, int64_t end);

WidthSpan width_span(DType from, DType to);

void widen(DType from, const void* src, float* dst, int64_t numel);
void narrow(const float* src, DType to, void* dst, int64_t numel);

// Loops with intrinsics, in each processor's folder; null if this processor lacks the instructions.
// They leave a span's ends, and vectors that their instructions would convert to other bits, to the
// plain loops.

WidthSpan own_narrow_bf16();
WidthSpan own_narrow_half();
WidthSpan own_widen_half();

void plain_narrow_bf16(const void* src, void* dst, int64_t begin, int64_t end);
void plain_narrow_half(const void* src, void* dst, int64_t begin, int64_t end);
void plain_widen_half(const void* src, void* dst, int64_t begin, int64_t end);

}  // namespace ofsdp::kernels
