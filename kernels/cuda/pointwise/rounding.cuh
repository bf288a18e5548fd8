// Products that nvcc does not contract into FMAs with what follows: each operation rounds by itself, as on
// the CPU. Threads: any. Errors: none.
#pragma once

#include <cuda_runtime.h>

namespace ofsdp::kernels::cuda {

__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }

}  // namespace ofsdp::kernels::cuda
