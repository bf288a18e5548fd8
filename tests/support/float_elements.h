// Elements of float products, for the loops in place of cuBLASLt: any of float32, float16 and
// bfloat16 as float32, and TF32's rounding. Values. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/core/tensor.h"

namespace ofsdp {

inline float load_float(const void* from, kernels::DType dtype, int64_t i) {
  if (dtype == kernels::DType::kFloat32) return static_cast<const float*>(from)[i];
  const uint16_t bits = static_cast<const uint16_t*>(from)[i];
  return dtype == kernels::DType::kFloat16 ? kernels::half_to_float(bits)
                                           : kernels::bfloat16_to_float(bits);
}

inline void store_float(void* to, kernels::DType dtype, int64_t i, float value) {
  if (dtype == kernels::DType::kFloat32) {
    static_cast<float*>(to)[i] = value;
    return;
  }
  static_cast<uint16_t*>(to)[i] = dtype == kernels::DType::kFloat16
                                      ? kernels::float_to_half(value)
                                      : kernels::float_to_bfloat16(value);
}

// Eight bits for the exponent and ten for the fraction, to the nearest.
inline float to_tf32(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

}  // namespace ofsdp
