#include "kernels/ops/shape/grid_taps.h"

#include <cmath>
#include <limits>

#include "kernels/formulas/cubic.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr double kCubicA = -0.75;

// A place in pixels and its derivative, first by g.
struct Place {
  double u, slope;
};

Place place_of(const GridAxis& axis, double g) {
  const auto size = static_cast<double>(axis.size);
  if (axis.align_corners) return {(g + 1) / 2 * (size - 1), (size - 1) / 2};
  return {((g + 1) * size - 1) / 2, size / 2};
}

// Mirrored at both ends until it lies between them.
Place mirrored(const GridAxis& axis, Place at) {
  const double begin = axis.align_corners ? 0 : -0.5;
  const auto span = static_cast<double>(axis.align_corners ? axis.size - 1 : axis.size);
  if (span == 0) return {0, 0};
  const double distance = std::abs(at.u - begin);
  const double rest = std::fmod(distance, span);
  const bool back = std::fmod(std::floor(distance / span), 2) != 0;
  const double sign = back == (at.u < begin) ? 1 : -1;
  return {begin + (back ? span - rest : rest), sign * at.slope};
}

Place moved_inside(const GridAxis& axis, Place at) {
  if (axis.padding == GridPadding::kZeros) return at;
  if (axis.padding == GridPadding::kReflection) at = mirrored(axis, at);
  const auto last = static_cast<double>(axis.size - 1);
  if (at.u <= 0) return {0, 0};
  return at.u >= last ? Place{last, 0} : at;
}

void add_tap(const GridAxis& axis, double pixel, double weight, double slope, GridTaps& taps) {
  if (!(pixel >= 0 && pixel < static_cast<double>(axis.size))) return;
  const auto k = static_cast<size_t>(taps.count++);
  taps.index[k] = static_cast<int64_t>(pixel);
  taps.weight[k] = weight;
  taps.slope[k] = slope;
}

}  // namespace

GridAxis grid_axis(const Attributes& attributes, int64_t size) {
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

GridTaps taps_at(const GridAxis& axis, double g) {
  GridTaps taps;
  const Place raw = place_of(axis, g);
  if (!std::isfinite(raw.u)) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    add_tap(axis, 0, kNaN, kNaN, taps);
  } else if (axis.mode == GridMode::kCubic) {
    for (int k = -1; k <= 2; ++k) {
      const double pixel = std::floor(raw.u) + k, x = raw.u - pixel;
      add_tap(axis, moved_inside(axis, {pixel, 0}).u, cubic_weight(x, kCubicA),
              raw.slope * cubic_slope(x, kCubicA), taps);
    }
  } else if (const Place at = moved_inside(axis, raw); axis.mode == GridMode::kNearest) {
    add_tap(axis, std::nearbyint(at.u), 1, 0, taps);
  } else {
    const double left = std::floor(at.u), ratio = at.u - left;
    add_tap(axis, left, 1 - ratio, -at.slope, taps);
    add_tap(axis, left + 1, ratio, at.slope, taps);
  }
  return taps;
}

}  // namespace ofsdp::kernels::ops
