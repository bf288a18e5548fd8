// DeviceMath: CUDA's math functions as the parameter M of kernels/formulas.
#pragma once

#include <cmath>

#include "kernels/formulas/activation.h"

namespace ofsdp::kernels::cuda {

struct DeviceMath {
#define OFSDP_FUNCTION(name)    \
  template <typename T>         \
  OFSDP_HD static T name(T x) { \
    return std::name(x);        \
  }
#define OFSDP_FUNCTION_OF_TWO(name)  \
  template <typename T>              \
  OFSDP_HD static T name(T x, T y) { \
    return std::name(x, y);          \
  }
  OFSDP_FUNCTION(exp)
  OFSDP_FUNCTION(expm1)
  OFSDP_FUNCTION(log)
  OFSDP_FUNCTION(log1p)
  OFSDP_FUNCTION(sqrt)
  OFSDP_FUNCTION(tanh)
  OFSDP_FUNCTION(erf)
  OFSDP_FUNCTION(fabs)
  OFSDP_FUNCTION_OF_TWO(fmod)
  OFSDP_FUNCTION_OF_TWO(copysign)
#undef OFSDP_FUNCTION
#undef OFSDP_FUNCTION_OF_TWO
};

}  // namespace ofsdp::kernels::cuda
