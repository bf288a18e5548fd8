// Extents and kernels of GridSample and its gradients (grid_sample.cpp). x is [images, channels,
// pixels], y is [images, channels, places], the grid is [images, places, axes], innermost axis
// first. Owns: values. Threads: any. Errors: none.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/ops/shape/grid_taps.h"

namespace ofsdp::kernels::ops {

struct GridExtent {
  int64_t images = 0, channels = 0, pixels = 0, places = 0;
  std::vector<GridAxis> axes;  // outermost first
};

// REQUIRES: checked operands.
GridExtent grid_extent(const Attributes& attributes, const Shape& x, const Shape& grid);

// float32 or float64, plain. Threads share outputs, never a sum.
std::unique_ptr<Kernel> make_grid_sample(const Problem& problem);             // x, grid -> y
std::unique_ptr<Kernel> make_grid_sample_grad_input(const Problem& problem);  // dy, grid -> dx
std::unique_ptr<Kernel> make_grid_sample_grad_grid(const Problem& problem);  // dy, x, grid -> dgrid

}  // namespace ofsdp::kernels::ops
