// For operators with one kernel template for all float types: `accepts` checks and implementation
// lists.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

// Makes float16 and bfloat16 kernels from float32 kernels: widens inputs into the workspace, runs
// the float32 kernel there, rounds outputs to nearest, ties to even.
//
//   .cpu = {{"rows", accepts, create}, in_float32<accepts, create>()}
//
// Other operands go through untouched, as do 16-bit operands that the inner kernel takes itself
// (in_float32_but). Constants keep their bytes and dtype. The outer kernel owns the inner one and
// returns the same errors.

// Leaves the first `images` inputs and output 0 in 16 bits for `inner`.
Implementation in_float32_but(const char* name, size_t images, Implementation inner);

// Runs `inner` for 16-bit floats.
Implementation in_float32(Implementation inner);

template <auto accepts, auto create>
Implementation in_float32() {
  return in_float32({"", accepts, create});
}

// An implementation `name` for other types, then in_float32.
template <auto accepts, auto create>
std::vector<Implementation> with_half_floats(const char* name) {
  return {{name, accepts, create}, in_float32<accepts, create>()};
}

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

// Accepts if all operands have type T and the plain layout.
template <typename T>
Acceptance accepts_plain_of(const Problem& p) {
  if (!p.all_dtype(dtype_of<T>())) return Acceptance::refuse(not_of_type<T>());
  return accept_if(p.all_plain(), kNotPlain);
}

// Checks only the first operand's type: others are indices or sizes.
template <typename T>
Acceptance accepts_plain_first_of(const Problem& p) {
  if (p.in(0).dtype != dtype_of<T>()) return Acceptance::refuse(not_of_type<T>());
  return accept_if(p.all_plain(), kNotPlain);
}

// Implementations: `name` for float32, in_float32 for 16-bit floats, then float64.
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
