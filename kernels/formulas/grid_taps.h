// The pixels that a coordinate g of GridSample's grid reads along one axis, with their weights and
// d weight / d g; for the CPU and for devices. In pixels, g is at
//
//   u = (g + 1) / 2 (size - 1)     with align_corners: -1 and 1 are the centers of outer pixels
//   u = ((g + 1) size - 1) / 2     without: they are the outer edges
//
// border moves u into [0, size - 1]; reflection first mirrors it at -1 and 1. The cubic kernel
// reads around u itself, and moves each pixel that it reads instead. Pixels outside the image are
// left out, which implements zeros. If u is not finite, the result is NaN. Slopes are PyTorch's:
// the linear kernel has the slope to the right, and a moved u has slope 0 from the outer centers
// on.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/formulas/cubic.h"

namespace ofsdp::kernels {

enum class GridMode { kNearest, kLinear, kCubic };
enum class GridPadding { kZeros, kBorder, kReflection };

// REQUIRES: size > 0.
struct GridAxis {
  int64_t size = 0;
  GridMode mode = GridMode::kLinear;
  GridPadding padding = GridPadding::kZeros;
  bool align_corners = false;
};

struct GridTaps {
  int count = 0;
  int64_t index[4] = {};
  double weight[4] = {}, slope[4] = {};
};

// A position in pixels, and the derivative by g.
struct GridPlace {
  double u, slope;
};

OFSDP_HD GridPlace grid_place(const GridAxis& axis, double g) {
  const auto size = static_cast<double>(axis.size);
  if (axis.align_corners) return {(g + 1) / 2 * (size - 1), (size - 1) / 2};
  return {((g + 1) * size - 1) / 2, size / 2};
}

// Mirrors a position at both ends until it lies between them.
OFSDP_HD GridPlace grid_mirrored(const GridAxis& axis, GridPlace at) {
  const double begin = axis.align_corners ? 0 : -0.5;
  const auto span = static_cast<double>(axis.align_corners ? axis.size - 1 : axis.size);
  if (span == 0) return {0, 0};
  const double distance = std::fabs(at.u - begin);
  const double rest = std::fmod(distance, span);
  const bool back = std::fmod(std::floor(distance / span), 2.0) != 0;
  const double sign = back == (at.u < begin) ? 1 : -1;
  return {begin + (back ? span - rest : rest), sign * at.slope};
}

OFSDP_HD GridPlace grid_inside(const GridAxis& axis, GridPlace at) {
  if (axis.padding == GridPadding::kZeros) return at;
  if (axis.padding == GridPadding::kReflection) at = grid_mirrored(axis, at);
  const auto last = static_cast<double>(axis.size - 1);
  if (at.u <= 0) return {0, 0};
  if (at.u >= last) return {last, 0};
  return at;
}

OFSDP_HD void add_grid_tap(const GridAxis& axis, double pixel, double weight, double slope,
                           GridTaps& taps) {
  if (!(pixel >= 0 && pixel < static_cast<double>(axis.size))) return;
  taps.index[taps.count] = static_cast<int64_t>(pixel);
  taps.weight[taps.count] = weight;
  taps.slope[taps.count++] = slope;
}

OFSDP_HD GridTaps grid_taps(const GridAxis& axis, double g) {
  constexpr double kCubicA = -0.75;
  GridTaps taps;
  const GridPlace raw = grid_place(axis, g);
  const double none = raw.u - raw.u;  // NaN if u is not finite
  if (none != 0) {
    add_grid_tap(axis, 0, none, none, taps);
  } else if (axis.mode == GridMode::kCubic) {
    for (int k = -1; k <= 2; ++k) {
      const double pixel = std::floor(raw.u) + k, x = raw.u - pixel;
      add_grid_tap(axis, grid_inside(axis, {pixel, 0}).u, cubic_weight(x, kCubicA),
                   raw.slope * cubic_slope(x, kCubicA), taps);
    }
  } else {
    const GridPlace at = grid_inside(axis, raw);
    if (axis.mode == GridMode::kNearest) {
      add_grid_tap(axis, std::nearbyint(at.u), 1, 0, taps);
      return taps;
    }
    const double left = std::floor(at.u), ratio = at.u - left;
    add_grid_tap(axis, left, 1 - ratio, -at.slope, taps);
    add_grid_tap(axis, left + 1, ratio, at.slope, taps);
  }
  return taps;
}

}  // namespace ofsdp::kernels
