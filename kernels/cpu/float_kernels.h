// For operators with one kernel template for all float types: the checks of `accepts`, and the list
// of implementations.
#pragma once

#include <vector>

#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

// T: float, double, BFloat16 or Half.
template <typename T>
constexpr const char* not_of_type() {
  constexpr DType kType = dtype_of<T>();
  return kType == DType::kFloat32    ? "not float32"
         : kType == DType::kFloat64  ? "not float64"
         : kType == DType::kBFloat16 ? "not bfloat16"
                                     : "not float16";
}

inline constexpr const char* kNotPlain = "not the plain layout";

// Accepts operands that are all of type T and all in the plain layout.
template <typename T>
Acceptance accepts_plain_of(const Problem& p) {
  if (!p.all_dtype(dtype_of<T>())) return Acceptance::refuse(not_of_type<T>());
  return accept_if(p.all_plain(), kNotPlain);
}

// The same for the first operand alone: others are indices or sizes.
template <typename T>
Acceptance accepts_plain_first_of(const Problem& p) {
  if (p.in(0).dtype != dtype_of<T>()) return Acceptance::refuse(not_of_type<T>());
  return accept_if(p.all_plain(), kNotPlain);
}

// Implementations for float32 under `name`, for 16-bit floats through float32, and for float64.
template <auto accepts32, auto create32, auto accepts64, auto create64>
std::vector<Implementation> float_kernels(const char* name) {
  return {{name, accepts32, create32},
          in_float32<accepts32, create32>(),
          {"float64", accepts64, create64}};
}

// The same for plain operands.
template <auto create32, auto create64>
std::vector<Implementation> plain_float_kernels(const char* name) {
  return float_kernels<accepts_plain_of<float>, create32, accepts_plain_of<double>, create64>(name);
}

}  // namespace ofsdp::kernels
