// Kernels for float16 and bfloat16 out of kernels for float32: the inputs are widened into the
// workspace, the float32 kernel runs there, its outputs are rounded to nearest even.
//
//   .cpu = {{"rows", accepts, create}, in_float32<accepts, create>()}
//
// Operands of other types go through untouched. Ownership: the outer kernel owns the inner one.
// Threads: see Kernel. Errors: those of the inner kernel.
#pragma once

#include <memory>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

bool has_half_floats(const Problem& p);
Problem as_float32(const Problem& p);  // 16-bit floats replaced by float32
std::unique_ptr<Kernel> convert_around(const Problem& p, std::unique_ptr<Kernel> inner);

template <auto accepts>
bool accepts_in_float32(const Problem& p) {
  return has_half_floats(p) && accepts(as_float32(p));
}

template <auto create>
std::unique_ptr<Kernel> create_in_float32(const Problem& p) {
  return convert_around(p, create(as_float32(p)));
}

template <auto accepts, auto create>
Implementation in_float32() {
  return {"in_float32", accepts_in_float32<accepts>, create_in_float32<create>};
}

}  // namespace ofsdp::kernels
