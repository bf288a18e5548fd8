// Kernels for float16 and bfloat16 from kernels for float32: the inputs are widened into the
// workspace, the float32 kernel runs there, the outputs are rounded to nearest even.
//
//   .cpu = {{"rows", accepts, create}, in_float32<accepts, create>()}
//
// Operands of other types go through untouched, also operands that the inner kernel reads and
// writes in 16 bits (in_float32_but). Constants keep their bytes and their own type. The outer
// kernel owns the inner one and returns its errors.
#pragma once

#include <memory>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

// Leaves the first `images` inputs and output 0 in 16 bits; `inner` gets them so.
Implementation in_float32_but(const char* name, size_t images, Implementation inner);

// `inner` for 16-bit floats.
Implementation in_float32(Implementation inner);

template <auto accepts, auto create>
Implementation in_float32() {
  return in_float32({"", accepts, create});
}

// The same after an implementation of this name for other types.
template <auto accepts, auto create>
std::vector<Implementation> with_half_floats(const char* name) {
  return {{name, accepts, create}, in_float32<accepts, create>()};
}

}  // namespace ofsdp::kernels
