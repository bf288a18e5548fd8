// One axis of GridSample: the pixels that a coordinate g of the grid reads, with their weights and
// d weight / d g. The place in pixels is
//
//   u = (g + 1) / 2 (size - 1)     with align_corners: -1 and 1 are the centers of outer pixels
//   u = ((g + 1) size - 1) / 2     without: they are the outer edges
//
// border moves u into [0, size - 1]; reflection mirrors it at -1 and 1 before. The cubic kernel
// reads around u itself, and each of its pixels is moved instead. Pixels outside of the image are
// left out, so zeros need nothing. A u that is not finite gives NaN. Slopes are PyTorch's: of the
// linear kernel to the right, and 0 from the outer centers on where u is moved.
//
// Owns: values. Threads: any. Errors: none. REQUIRES: size > 0.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/core/attributes.h"

namespace ofsdp::kernels::ops {

enum class GridMode { kNearest, kLinear, kCubic };
enum class GridPadding { kZeros, kBorder, kReflection };

struct GridAxis {
  int64_t size = 0;
  GridMode mode = GridMode::kLinear;
  GridPadding padding = GridPadding::kZeros;
  bool align_corners = false;
};

struct GridTaps {
  int count = 0;
  std::array<int64_t, 4> index = {};
  std::array<double, 4> weight = {}, slope = {};
};

// ONNX's attributes, of an axis of `size`. REQUIRES: their texts are known ones.
GridAxis grid_axis(const Attributes& attributes, int64_t size);

GridTaps taps_at(const GridAxis& axis, double g);

}  // namespace ofsdp::kernels::ops
