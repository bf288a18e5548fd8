// Resize's axis maps, for kernels on every device. The CUDA library compiles this file too, so it
// must not need the CPU kernels.
#include <algorithm>
#include <cmath>

#include "kernels/base/budgets.h"
#include "kernels/formulas/cubic.h"
#include "kernels/ops/shape/resize.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

struct Axis {
  int64_t in = 0, out = 0;
  double scale = 1, roi_begin = 0, roi_end = 1;
};

// Sizes beyond any budget need not be exact, but must be numbers.
int64_t whole(double size) { return static_cast<int64_t>(std::min(std::floor(size), 0x1p60)); }

// Returns the coordinate in x for output position o.
double coordinate(const std::string& mode, const Axis& a, int64_t o) {
  const auto x = static_cast<double>(o), in = static_cast<double>(a.in);
  const double width = a.scale * in;
  if (mode == "align_corners") return width == 1 ? 0 : x * (in - 1) / (width - 1);
  if (mode == "asymmetric") return x / a.scale;
  if (mode == "pytorch_half_pixel" && width == 1) return -0.5;
  if (mode == "tf_crop_and_resize") {
    const double span = (a.roi_end - a.roi_begin) * (in - 1);
    return (width == 1 ? span / 2 : x * span / (width - 1)) + a.roi_begin * (in - 1);
  }
  const double half = (x + 0.5) / a.scale - 0.5;
  if (mode != "half_pixel_symmetric") return half;
  return in / 2 * (1 - static_cast<double>(a.out) / width) + half;
}

// Returns the neighbours' weights. The middle two neighbours lie left and right of the position;
// `ratio`, in (0, 1], is the distance from the left one. Antialiasing stretches the weights if the
// axis shrinks.
std::vector<double> weights_of(const Attributes& attributes, double ratio, double scale) {
  const std::string mode = attributes.s("mode", "nearest");
  if (mode == "nearest") {
    const std::string round = attributes.s("nearest_mode", "round_prefer_floor");
    bool right = ratio == 1 || round == "ceil";
    if (round == "round_prefer_floor") right = ratio > 0.5;
    if (round == "round_prefer_ceil") right = ratio >= 0.5;
    return {right ? 0.0 : 1.0, right ? 1.0 : 0.0};
  }
  const bool cubic = mode == "cubic";
  const double a = static_cast<double>(attributes.f("cubic_coeff_a", -0.75f));
  const double stretch = attributes.i("antialias", 0) != 0 ? std::min(scale, 1.0) : 1.0;
  const double reach = cubic ? 2 : 1;
  const auto begin = static_cast<int64_t>(std::floor(-reach / stretch)) + 1;
  std::vector<double> made;
  double sum = 0;
  for (int64_t i = begin; i < 2 - begin; ++i) {
    const double x = (static_cast<double>(i) - ratio) * stretch;
    made.push_back(cubic ? cubic_weight(x, a) : std::clamp(1 - std::abs(x), 0.0, 1.0));
    sum += made.back();
  }
  if (stretch == 1) return made;  // they sum to 1 already, up to rounding
  for (double& w : made) w /= sum;
  return made;
}

void add_row(const Attributes& attributes, const Axis& a, int64_t o, AxisMap& map) {
  const std::string mode = attributes.s("coordinate_transformation_mode", "half_pixel");
  const double x = coordinate(mode, a, o);
  const auto last = static_cast<double>(a.in - 1);
  const bool outside = mode == "tf_crop_and_resize" && (x < 0 || x > last);
  map.outside.push_back(outside);
  if (!outside) {
    const double floor = std::floor(x);
    std::vector<double> weights = weights_of(attributes, x == floor ? 1 : x - floor, a.scale);
    const int64_t left = static_cast<int64_t>(floor) - (x == floor ? 1 : 0);
    const int64_t begin = left + 1 - static_cast<int64_t>(weights.size()) / 2;
    const auto at = [&](size_t k) { return begin + static_cast<int64_t>(k); };
    if (attributes.i("exclude_outside", 0) != 0) {
      double sum = 0;
      for (size_t k = 0; k < weights.size(); ++k) {
        if (at(k) < 0 || at(k) >= a.in) weights[k] = 0;
        sum += weights[k];
      }
      for (double& w : weights) w /= sum == 0 ? 1 : sum;
    }
    for (size_t k = 0; k < weights.size(); ++k) {
      if (weights[k] == 0) continue;
      const int64_t index = std::clamp<int64_t>(at(k), 0, a.in - 1);
      const auto row = static_cast<size_t>(map.first.back());
      if (map.index.size() > row && map.index.back() == index) {
        map.weight.back() += weights[k];  // the edge, repeated
      } else {
        map.index.push_back(index);
        map.weight.push_back(weights[k]);
      }
    }
  }
  map.first.push_back(static_cast<int64_t>(map.index.size()));
}

Result<std::vector<int>> resized_axes(const Attributes& attributes, int rank) {
  std::vector<int> axes;
  if (!attributes.has("axes")) {
    for (int i = 0; i < rank; ++i) axes.push_back(i);
    return axes;
  }
  for (int64_t given : attributes.ints("axes")) {  // in the given order, which scales follow
    OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(given, rank));
    if (std::ranges::find(axes, axis) != axes.end()) {
      return input_error("axes: {} is named twice", axis);
    }
    axes.push_back(axis);
  }
  return axes;
}

Status apply_scales(const std::vector<double>& scales, const std::vector<int>& axes,
                    std::vector<Axis>& all) {
  for (size_t i = 0; i < axes.size(); ++i) {
    Axis& a = all[static_cast<size_t>(axes[i])];
    if (!(scales[i] > 0)) return input_error("scales: expected positive ones, found {}", scales[i]);
    a.scale = scales[i];
    a.out = whole(static_cast<double>(a.in) * scales[i]);
  }
  return ok_status();
}

Status apply_sizes(const Attributes& attributes, const std::vector<double>& sizes,
                   const std::vector<int>& axes, std::vector<Axis>& all) {
  const std::string policy = attributes.s("keep_aspect_ratio_policy", "stretch");
  double least = INFINITY, most = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    Axis& a = all[static_cast<size_t>(axes[i])];
    if (!(sizes[i] >= 0)) return input_error("sizes: expected sizes from 0 on, found {}", sizes[i]);
    a.out = whole(sizes[i]);
    a.scale = a.in == 0 ? 1 : sizes[i] / static_cast<double>(a.in);
    least = std::min(least, a.scale);
    most = std::max(most, a.scale);
  }
  if (policy == "stretch") return ok_status();
  if (policy != "not_larger" && policy != "not_smaller") {
    return input_error(
        "keep_aspect_ratio_policy: expected stretch, not_larger or not_smaller, found {}", policy);
  }
  for (int axis : axes) {
    Axis& a = all[static_cast<size_t>(axis)];
    a.scale = policy == "not_larger" ? least : most;
    a.out = whole(a.scale * static_cast<double>(a.in) + 0.5);
  }
  return ok_status();
}

// Limits the map rows plus the neighbours that make each row.
Status check_entries(const Attributes& attributes, const std::vector<Axis>& all) {
  double entries = 0;
  for (const Axis& a : all) {
    const bool shrinks = attributes.i("antialias", 0) != 0 && a.scale < 1;
    const double neighbours = 4 * (shrinks ? 1 / a.scale : 1);
    entries += static_cast<double>(a.in) + static_cast<double>(a.out) * neighbours;
  }
  if (entries <= static_cast<double>(4 * kMaxTableEntries)) return ok_status();
  return input_error("expected axes with at most {} places to resize, found {}", kMaxTableEntries,
                     static_cast<int64_t>(std::min(entries / 4, 1e18)));
}

Status check_modes(const Attributes& attributes) {
  const auto check = [&](const char* name, const char* otherwise,
                         const std::vector<std::string>& known) -> Status {
    const std::string found = attributes.s(name, otherwise);
    if (std::ranges::find(known, found) != known.end()) return ok_status();
    return input_error("{}: expected one of {}, found {}", name, joined(known, ", "), found);
  };
  OFSDP_RETURN_IF_ERROR(check("mode", "nearest", {"nearest", "linear", "cubic"}));
  OFSDP_RETURN_IF_ERROR(check("nearest_mode", "round_prefer_floor",
                              {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}));
  return check("coordinate_transformation_mode", "half_pixel",
               {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                "asymmetric", "tf_crop_and_resize"});
}

}  // namespace

bool AxisMap::is_identity() const {
  if (in != out || index.size() != static_cast<size_t>(in)) return false;
  for (size_t i = 0; i < index.size(); ++i) {
    if (first[i] != static_cast<int64_t>(i) || index[i] != first[i] || weight[i] != 1) return false;
  }
  return true;
}

AxisMap AxisMap::transposed() const {
  AxisMap made{.in = out, .out = in, .first = {0}};
  std::vector<std::vector<std::pair<int64_t, double>>> rows(static_cast<size_t>(in));
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = first[static_cast<size_t>(o)]; k < first[static_cast<size_t>(o) + 1]; ++k) {
      const auto at = static_cast<size_t>(k);
      rows[static_cast<size_t>(index[at])].push_back({o, weight[at]});
    }
  }
  for (const auto& row : rows) {
    for (const auto& [o, w] : row) {
      made.index.push_back(o);
      made.weight.push_back(w);
    }
    made.first.push_back(static_cast<int64_t>(made.index.size()));
  }
  made.outside.assign(static_cast<size_t>(in), false);
  return made;
}

bool is_nearest(const Attributes& attributes) {
  return attributes.s("mode", "nearest") == "nearest";
}

Result<ResizeMaps> resolve_resize(const Attributes& attributes, const Shape& x,
                                  const ResizeInputs& inputs) {
  OFSDP_RETURN_IF_ERROR(check_modes(attributes));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<int> axes, resized_axes(attributes, x.rank()));
  const size_t count = axes.size();
  std::vector<Axis> all;
  for (int64_t size : x.axes()) all.push_back({.in = size, .out = size});
  if (inputs.scales.empty() == inputs.sizes.empty()) {
    return input_error("expected either scales or sizes");
  }
  const size_t found = inputs.scales.empty() ? inputs.sizes.size() : inputs.scales.size();
  if (found != count) {
    return input_error("{}: expected {} values for {}, found {}",
                       inputs.scales.empty() ? "sizes" : "scales", count, x.text(), found);
  }
  if (inputs.roi.size() == 2 * count) {
    for (size_t i = 0; i < count; ++i) {
      all[static_cast<size_t>(axes[i])].roi_begin = inputs.roi[i];
      all[static_cast<size_t>(axes[i])].roi_end = inputs.roi[count + i];
    }
  }
  OFSDP_RETURN_IF_ERROR(inputs.scales.empty() ? apply_sizes(attributes, inputs.sizes, axes, all)
                                              : apply_scales(inputs.scales, axes, all));
  OFSDP_RETURN_IF_ERROR(check_entries(attributes, all));
  ResizeMaps made;
  std::vector<int64_t> y;
  for (const Axis& a : all) {
    if (a.in == 0 && a.out > 0) return input_error("an axis of {} cannot grow", x.text());
    y.push_back(a.out);
    AxisMap map{.in = a.in, .out = a.out, .first = {0}};
    for (int64_t o = 0; o < a.out; ++o) add_row(attributes, a, o, map);
    map.scale = a.scale;
    map.roi_begin = a.roi_begin;
    map.roi_end = a.roi_end;
    made.axes.push_back(std::move(map));
  }
  made.y = Shape(std::move(y));
  return made;
}

}  // namespace ofsdp::kernels::ops
