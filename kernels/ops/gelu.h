// What Gelu, com.microsoft's FastGelu and BiasGelu share; formulas in kernels/cpu/gelu_formulas.h.
//
// Threads: any.
#pragma once

#include "kernels/cpu/gelu_formulas.h"

namespace ofsdp::ops {

// In double, for the tests.
double reference_gelu(double x, bool tanh);
double reference_gelu_slope(double x, bool tanh);

}  // namespace ofsdp::ops
