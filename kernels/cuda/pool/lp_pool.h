// LpPool and its gradient: y = (sum over taps of |x|^p)^(1/p); kernels/ops/pool/lp_pool.cpp has the formulas.
//
// The window of window.h, plain layout; float32, float16, bfloat16, in float32. A thread an output, or, backwards, an input, which
// adds up the outputs that saw it in the order of its taps. Memory: 2b and taps from the cache.
#pragma once

#include "kernels/cuda/conv/window.h"

namespace ofsdp::kernels::cuda {

cudaError_t lp_pool(const WindowExtent& w, int64_t p, const void* x, void* y, cudaStream_t stream);
cudaError_t lp_pool_grad(const WindowExtent& w, int64_t p, const void* dy, const void* x,
                         const void* y, void* dx, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
