// Local response normalization over channels and its gradient; kernels/ops/norm/lrn.cpp has the formulas.
//
// x, y, dy, dx [batch, channels, inner] of float32, float16 or bfloat16, in float32; a thread an element. Memory: x and y once,
// the window's channels from the cache; the gradient makes the sums of a window anew for each channel in it: size^2 reads.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct LrnExtent {
  DType dtype = DType::kFloat32;
  int64_t batch = 0, channels = 0, inner = 1;
  int64_t before = 0, after = 0;            // channels of the window in front of and behind one
  float alpha = 0, beta = 0.75f, bias = 1;  // alpha is divided by the size of the window
};
cudaError_t lrn(const LrnExtent& e, const void* x, void* y, cudaStream_t stream);
cudaError_t lrn_grad(const LrnExtent& e, const void* dy, const void* x, void* dx,
                     cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
