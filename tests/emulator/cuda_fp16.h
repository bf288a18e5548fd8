// See cuda_runtime.h: float16 as a storage type.
#pragma once

#include "cuda_runtime.h"
#include "kernels/core/tensor.h"

struct __half {
  uint16_t bits;
};
inline float __half2float(__half h) { return ofsdp::kernels::half_to_float(h.bits); }
inline __half __float2half_rn(float f) { return {ofsdp::kernels::float_to_half(f)}; }
