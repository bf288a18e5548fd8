// The sliding window on the device: max and average pooling with their gradients, im2col and col2im
// for convolution by matrix product. kernels/ops/conv/window.h and pool_shape.h have the meaning of
// the numbers; gradients gather (an input adds up the outputs that saw it, in their order), so
// there are no atomics.
//
// x [images, channels, in...], y [images, channels, out...], three spatial axes (leading ones of
// size 1), of `dtype` (float32, float16, bfloat16); channels_last: [images, in..., channels].
// Winners as the CPU stores them: uint8 for windows of up to 255 taps, else int32; all bits set:
// none.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct WindowExtent {
  DType dtype = DType::kFloat32;
  int64_t images = 0, channels = 0;
  bool channels_last = false;
  int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1};
  int64_t strides[3] = {1, 1, 1}, dilations[3] = {1, 1, 1}, pads_begin[3] = {}, pads_end[3] = {};
};

// y, and where not null the winners and (plain layout) ONNX's Indices: places in x, column_major as
// storage_order 1. relu: y = max(y, 0), and what that stops has no winner.
cudaError_t max_pool(const WindowExtent& w, const void* x, void* y, void* winners, int64_t* indices,
                     bool column_major, bool relu, cudaStream_t stream);
cudaError_t max_pool_grad(const WindowExtent& w, const void* dy, const void* winners, void* dx,
                          cudaStream_t stream);
// x to y, or `back` from dy to dx. count_pad: padding counts in the divisor, but not what ceil_mode
// reaches after it.
cudaError_t average_pool(const WindowExtent& w, bool back, bool count_pad, const void* from,
                         void* to, cudaStream_t stream);

// im2col, and col2im: x to columns [images, channels * taps, outputs], or `back` from columns to
// dx. Of a group's channels when x and w.channels are a group's part and image_step is the distance
// of images in x. Plain layout.
cudaError_t move_columns(const WindowExtent& w, bool back, int64_t image_step, const void* from,
                         void* to, cudaStream_t stream);

// The same for channels last: columns are [images * outputs, taps * channels], so that one product
// with weights [out channels, taps, channels] gives all images, channels last.
cudaError_t move_rows(const WindowExtent& w, bool back, const void* from, void* to,
                      cudaStream_t stream);

// LpPool and its gradient: y = (sum over taps of |x|^p)^(1/p); kernels/ops/pool/average_pool.cpp
// has the formulas.
//
// The window of window.h, plain layout; float32, float16, bfloat16, in float32. A thread an output,
// or, backwards, an input, which adds up the outputs that saw it in the order of its taps. Memory:
// 2b and taps from the cache.
cudaError_t lp_pool(const WindowExtent& w, int64_t p, const void* x, void* y, cudaStream_t stream);
cudaError_t lp_pool_grad(const WindowExtent& w, int64_t p, const void* dy, const void* x,
                         const void* y, void* dx, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
