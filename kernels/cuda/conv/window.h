// Sliding-window launchers: im2col and col2im for convolutions, max, average and Lp pooling with
// gradients (pool/pool.cu). kernels/ops/conv/window.h and pool_shape.h explain the members.
//
// x [images, channels, in...], y [images, channels, out...] with three spatial axes (leading ones
// have size 1), or [images, in..., channels] if channels_last; `dtype` float32, float16 or
// bfloat16, computed in float32. Gradients gather: each input sums over the outputs that read it,
// in order, without atomics.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct WindowParams {
  DType dtype = DType::kFloat32;
  int64_t images = 0, channels = 0;
  bool channels_last = false;
  int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1};
  int64_t strides[3] = {1, 1, 1}, dilations[3] = {1, 1, 1}, pads_begin[3] = {}, pads_end[3] = {};
};

// `winners` (may be null) has the argmax tap per output as the CPU stores it: uint8 for at most 255
// taps, otherwise int32; all bits set if there is none. `indices` (may be null, plain layout only):
// ONNX's Indices into x, column_major for storage_order 1. relu: y = max(y, 0), without a winner if
// it clips.
cudaError_t max_pool(const WindowParams& w, const void* x, void* y, void* winners, int64_t* indices,
                     bool column_major, bool relu, cudaStream_t stream);
cudaError_t max_pool_grad(const WindowParams& w, const void* dy, const void* winners, void* dx,
                          cudaStream_t stream);
// x to y, or dy to dx if `back`. count_pad: padding counts in the divisor, except beyond it through
// ceil_mode.
cudaError_t average_pool(const WindowParams& w, bool back, bool count_pad, const void* from,
                         void* to, cudaStream_t stream);

// im2col: x to columns [images, channels * taps, outputs]; col2im if `back`: columns to dx. Plain
// layout. For one group, pass w.channels per group, and as image_step the distance between images
// in x.
cudaError_t move_columns(const WindowParams& w, bool back, int64_t image_step, const void* from,
                         void* to, cudaStream_t stream);

// The same for channels last: columns [images * outputs, taps * channels], so that one product with
// weights [out channels, taps, channels] computes all images.
cudaError_t move_rows(const WindowParams& w, bool back, const void* from, void* to,
                      cudaStream_t stream);

// LpPool: y = (sum over taps of |x|^p)^(1/p), plain layout; formulas in
// kernels/ops/pool/average_pool.cpp. One thread per output, or per input in the gradient.
cudaError_t lp_pool(const WindowParams& w, int64_t p, const void* x, void* y, cudaStream_t stream);
cudaError_t lp_pool_grad(const WindowParams& w, int64_t p, const void* dy, const void* x,
                         const void* y, void* dx, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
