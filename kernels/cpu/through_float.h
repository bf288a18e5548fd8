// float16 and bfloat16 for kernels that know float32: the operands of 16 bits are widened into the
// workspace, the float32 kernel runs, its results are rounded to nearest even. For operators that
// are rare in these types, or so costly that the conversion does not matter.
//
//   {"through_float", accepts_through_float<accepts>, create_through_float<create>}
//
// Owns: the kernel owns the one it wraps. Threads: as Kernel.
#pragma once

#include <memory>

#include "kernels/core/kernel.h"

namespace ofsdp {

bool has_16_bit_float(const Problem& problem);
Problem with_float(const Problem& problem);  // the same, float32 in place of 16-bit floats
std::unique_ptr<Kernel> wrap_through_float(const Problem& problem, std::unique_ptr<Kernel> kernel);

template <bool (*accepts)(const Problem&)>
bool accepts_through_float(const Problem& p) {
  return has_16_bit_float(p) && accepts(with_float(p));
}

template <std::unique_ptr<Kernel> (*create)(const Problem&)>
std::unique_ptr<Kernel> create_through_float(const Problem& p) {
  return wrap_through_float(p, create(with_float(p)));
}

}  // namespace ofsdp
