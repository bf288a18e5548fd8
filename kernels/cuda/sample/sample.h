// Pixels read at computed positions: GridSample, RoiAlign and their gradients. All floats are
// float32. A thread makes an output element, or a plane of a gradient that several samples add to,
// so sums have a fixed order.
#pragma once

#include "kernels/cuda/device/types.h"
#include "kernels/formulas/grid_taps.h"
#include "kernels/formulas/roi_samples.h"

namespace ofsdp::kernels::cuda {

// x [images, channels, pixels], y [images, channels, places], grid [images, places, axes].
// `axis`: outermost first; a grid of two axes has one of size 1, without a coordinate, before them.
struct GridSampling {
  int64_t images = 0, channels = 0, pixels = 0, places = 0;
  int axes = 2;
  GridAxis axis[3];
};
// Reads the weights of a place once, and `channels` times the pixels that it names.
cudaError_t grid_sample(const GridSampling& e, const float* x, const float* grid, float* y,
                        cudaStream_t stream);
// A thread a plane: it walks all places in order, and finds their weights again.
cudaError_t grid_sample_grad_input(const GridSampling& e, const float* dy, const float* grid,
                                   float* dx, cudaStream_t stream);
cudaError_t grid_sample_grad_grid(const GridSampling& e, const float* dy, const float* x,
                                  const float* grid, float* dgrid, cudaStream_t stream);

// images [rois]: a region of an image that does not exist is reported, and reads image 0.
cudaError_t roi_align(const RoiParams& e, const float* x, const float* rois, const int64_t* images,
                      float* y, Fault fault, cudaStream_t stream);
// A thread a plane of dx: it walks all regions in order.
cudaError_t roi_align_grad(const RoiParams& e, const float* dy, const float* x, const float* rois,
                           const int64_t* images, float* dx, Fault fault, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
