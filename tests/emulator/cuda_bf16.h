// See cuda_runtime.h: bfloat16 as a storage type.
#pragma once

#include "cuda_runtime.h"
#include "kernels/core/tensor.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 h) { return ofsdp::kernels::bfloat16_to_float(h.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return {ofsdp::kernels::float_to_bfloat16(f)}; }
