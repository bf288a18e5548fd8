// Sizes in GridSample and its gradients: x is [images, channels, pixels], y [images, channels,
// places], grid [images, places, axes], innermost axis first.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/formulas/grid_taps.h"

namespace ofsdp::kernels::ops {

struct GridParams {
  int64_t images = 0, channels = 0, pixels = 0, places = 0;
  std::vector<GridAxis> axes;  // outermost first
};

// Returns ONNX's attributes for an axis with `size` pixels. REQUIRES: the attribute texts are
// known.
inline GridAxis grid_axis(const Attributes& attributes, int64_t size) {
  const std::string mode = attributes.s("mode", "linear");
  const std::string padding = attributes.s("padding_mode", "zeros");
  return {size,
          mode == "nearest" ? GridMode::kNearest
          : mode == "cubic" ? GridMode::kCubic
                            : GridMode::kLinear,
          padding == "border"       ? GridPadding::kBorder
          : padding == "reflection" ? GridPadding::kReflection
                                    : GridPadding::kZeros,
          attributes.i("align_corners", 0) != 0};
}

// REQUIRES: the operands were checked.
inline GridParams grid_extent(const Attributes& attributes, const Shape& x, const Shape& grid) {
  GridParams e{x[0], x[1], x.numel(2, x.rank()), grid.numel(1, grid.rank() - 1), {}};
  for (int axis = 2; axis < x.rank(); ++axis) e.axes.push_back(grid_axis(attributes, x[axis]));
  return e;
}

}  // namespace ofsdp::kernels::ops
