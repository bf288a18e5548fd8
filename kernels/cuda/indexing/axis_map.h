// Separable linear maps, one axis after another: Resize, Pad with reflect, edge and wrap, and the
// gradients.
//
// A pass maps one axis: y[o, t, j] = sum_s w(t, s) x[o, s, j] for x [outer, in, inner] and y
// [outer, out, inner]. Position t of y is a row of the matrix w; the positions s with w(t, s) != 0
// are its taps. Kernels compute w on the fly with the formulas in kernels/ops/shape/resize_map.cpp
// and pad.cpp. A gradient is a pass with the transposed matrix: it reads, in ascending order, the
// rows that have the element as a tap. Results between passes are float32. If each row has one tap
// of weight 1, a pass only moves elements, of any type. Each pass reads x and writes y once.
#pragma once

#include <vector>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

enum class AxisMapKind : uint8_t { kNearest, kLinear, kCubic, kReflect, kEdge, kWrap };
enum class Coordinates : uint8_t {
  kHalfPixel,
  kHalfPixelSymmetric,
  kPytorchHalfPixel,
  kAlignCorners,
  kAsymmetric,
  kCrop
};
enum class NearestMode : uint8_t { kRoundFloor, kRoundCeil, kFloor, kCeil };

// The map of one axis.
struct AxisNumbers {
  AxisMapKind kind = AxisMapKind::kNearest;
  int64_t in = 0, out = 0;
  // Resize only.
  Coordinates coordinates = Coordinates::kHalfPixel;
  NearestMode nearest = NearestMode::kRoundFloor;
  bool antialias = false, exclude_outside = false;
  double scale = 1, roi_begin = 0, roi_end = 1, cubic_a = -0.75;
  double fill = 0;  // kCrop: the value of y at rows that lie outside x
  // Pad only: the source is `kept` positions from `first` on; output row `before` is the first of
  // them.
  int64_t before = 0, first = 0, kept = 0;
};

struct AxisPass {
  int64_t outer = 1, inner = 1;
  AxisNumbers map;
};

// Returns the passes over x with the given shape, shrinking axes first. Empty: y = x.
std::vector<AxisPass> plan_axes(const std::vector<int64_t>& shape,
                                const std::vector<AxisNumbers>& maps);
// Returns the passes of the gradient, from y's `shape` to x's, for the same forward `maps`: the
// forward passes in reverse order.
std::vector<AxisPass> plan_axes_back(const std::vector<int64_t>& shape,
                                     const std::vector<AxisNumbers>& maps);

// Run passes. `back`: with the transposed matrices; the passes are of plan_axes_back. `scratch` is
// device memory of axes_scratch bytes. `dtype`: float32, float16 or bfloat16.
size_t axes_scratch(const std::vector<AxisPass>& passes, bool back);
cudaError_t apply_axes(const std::vector<AxisPass>& passes, bool back, DType dtype, const void* x,
                       void* y, void* scratch, cudaStream_t stream);
// Moves elements of `size` bytes. `scratch` has move_scratch bytes. REQUIRES: each row has one tap
// of weight 1.
cudaError_t move_axes(const std::vector<AxisPass>& passes, size_t size, const void* x, void* y,
                      void* scratch, cudaStream_t stream);
size_t move_scratch(const std::vector<AxisPass>& passes, size_t size);

}  // namespace ofsdp::kernels::cuda
