// Linear maps of axes, one after another: Resize, Pad by what is there, and their gradients.
//
// A pass is y[o, t, j] = sum over s of w(t, s) x[o, s, j], of x [outer, from, inner] and y [outer,
// to, inner], with weights that kernels make from the numbers of the map, as
// kernels/ops/shape/resize.cpp and kernels/ops/shape/pad.cpp do: no table is in memory. A gradient
// gathers: it finds the rows that read an element, in their order. What lies between passes is
// float32; maps of one entry a row, with weight 1, move elements of any type. Memory: x and y once
// a pass.
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

// From `in` to `out` positions.
struct AxisNumbers {
  AxisMapKind kind = AxisMapKind::kNearest;
  int64_t in = 0, out = 0;
  // Resize
  Coordinates coordinates = Coordinates::kHalfPixel;
  NearestMode nearest = NearestMode::kRoundFloor;
  bool antialias = false, exclude_outside = false;
  double scale = 1, roi_begin = 0, roi_end = 1, cubic_a = -0.75;
  double fill = 0;  // of rows outside of x (kCrop)
  // Pad: row 0 shows position -before of the kept ones, which are `kept` from `first` on
  int64_t before = 0, first = 0, kept = 0;
};

struct AxisPass {
  int64_t outer = 1, inner = 1;
  AxisNumbers map;
};

// The passes over x of that shape, those that shrink first; none: y is x.
std::vector<AxisPass> plan_axes(const std::vector<int64_t>& shape,
                                const std::vector<AxisNumbers>& maps);
// The way back, from y's shape: the passes in reverse.
std::vector<AxisPass> plan_axes_back(const std::vector<int64_t>& shape,
                                     const std::vector<AxisNumbers>& maps);

size_t axes_scratch(const std::vector<AxisPass>& passes, bool back);
// dtype: float32, float16 or bfloat16.
cudaError_t apply_axes(const std::vector<AxisPass>& passes, bool back, DType dtype, const void* x,
                       void* y, void* scratch, cudaStream_t stream);
// Takes elements of `size` bytes; rows outside of x are not there.
cudaError_t move_axes(const std::vector<AxisPass>& passes, size_t size, const void* x, void* y,
                      void* scratch, cudaStream_t stream);
size_t move_scratch(const std::vector<AxisPass>& passes, size_t size);

}  // namespace ofsdp::kernels::cuda
