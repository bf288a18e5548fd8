// What Gelu, com.microsoft's FastGelu and BiasGelu share; formulas in kernels/cpu/gelu_formulas.h.
//
// Threads: any.
#pragma once

#include "kernels/cpu/gelu_formulas.h"

namespace ofsdp::kernels::ops {

// In double, for the tests.
double reference_gelu(double x, bool tanh);
double reference_gelu_slope(double x, bool tanh);

// With tanh: of x, and as its gradient of dy and x.
struct GeluTanh {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return gelu_tanh(x);
  }
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d * gelu_tanh_slope(x);
  }
};

}  // namespace ofsdp::kernels::ops
