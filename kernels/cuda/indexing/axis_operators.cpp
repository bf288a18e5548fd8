// Resize, Pad with non-constant modes, and the gradients (axis_map.h).
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/axis_map.h"
#include "kernels/ops/shape/resize.h"

namespace ofsdp::kernels::cuda {
namespace {

std::vector<double> known_numbers(const Problem& p, size_t input) {
  const Constant* constant = p.constant(input);
  if (constant == nullptr) return {};
  return to_doubles(constant->desc, constant->bytes.data());
}

// Reorders axes to the memory layout.
template <typename T>
std::vector<T> as_stored(std::vector<T> axes, Layout layout) {
  if (layout == Layout::kChannelsLast) std::rotate(axes.begin() + 1, axes.begin() + 2, axes.end());
  return axes;
}

Coordinates parse_coordinates(const std::string& mode) {
  if (mode == "half_pixel_symmetric") return Coordinates::kHalfPixelSymmetric;
  if (mode == "pytorch_half_pixel") return Coordinates::kPytorchHalfPixel;
  if (mode == "align_corners") return Coordinates::kAlignCorners;
  if (mode == "asymmetric") return Coordinates::kAsymmetric;
  return mode == "tf_crop_and_resize" ? Coordinates::kCrop : Coordinates::kHalfPixel;
}

NearestMode parse_nearest(const std::string& mode) {
  if (mode == "round_prefer_ceil") return NearestMode::kRoundCeil;
  if (mode == "floor") return NearestMode::kFloor;
  return mode == "ceil" ? NearestMode::kCeil : NearestMode::kRoundFloor;
}

std::vector<AxisNumbers> resize_maps(const Problem& p, const Shape& x) {
  const Attributes& a = p.attributes;
  const ops::ResizeMaps maps =
      *ops::resolve_resize(a, x, {known_numbers(p, 1), known_numbers(p, 2), known_numbers(p, 3)});
  const std::string mode = a.s("mode", "nearest");
  AxisNumbers common;
  common.kind = mode == "linear"  ? AxisMapKind::kLinear
                : mode == "cubic" ? AxisMapKind::kCubic
                                  : AxisMapKind::kNearest;
  common.coordinates = parse_coordinates(a.s("coordinate_transformation_mode", "half_pixel"));
  common.nearest = parse_nearest(a.s("nearest_mode", "round_prefer_floor"));
  common.antialias = a.i("antialias", 0) != 0;
  common.exclude_outside = a.i("exclude_outside", 0) != 0;
  common.cubic_a = static_cast<double>(a.f("cubic_coeff_a", -0.75f));
  common.fill = static_cast<double>(a.f("extrapolation_value", 0.0f));
  std::vector<AxisNumbers> made;
  for (const ops::AxisMap& map : maps.axes) {
    made.push_back(common);
    made.back().in = map.in;
    made.back().out = map.out;
    made.back().scale = map.scale;
    made.back().roi_begin = map.roi_begin;
    made.back().roi_end = map.roi_end;
  }
  return made;
}

// `moves`: elements are moved, not summed. Without passes this is a copy.
std::unique_ptr<CudaKernel> make_axes(const Problem& p, std::vector<AxisPass> passes, bool back,
                                      bool moves) {
  const DType dtype = p.in(0).dtype;
  const size_t size = dtype_size(dtype);
  const size_t scratch = moves ? move_scratch(passes, size) : axes_scratch(passes, back);
  if (passes.empty()) {
    return make_cuda_kernel([bytes = p.out(0).bytes()](cudaStream_t stream, const Launch& l) {
      return copy_bytes(l.out(0), l.in(0), bytes, stream);
    });
  }
  return make_cuda_kernel(
      [=, passes = std::move(passes)](cudaStream_t stream, const Launch& l) {
        return moves ? move_axes(passes, size, l.in(0), l.out(0), l.workspace, stream)
                     : apply_axes(passes, back, dtype, l.in(0), l.out(0), l.workspace, stream);
      },
      scratch);
}

// Accepts other types than floats only if elements are moved and none filled.
Acceptance accepts_resize(const Problem& p) {
  const std::string mode = p.attributes.s("coordinate_transformation_mode", "half_pixel");
  const bool moves = ops::is_nearest(p.attributes) && mode != "tf_crop_and_resize";
  const auto size = [&](size_t i) {
    return p.has_in(i) && p.in(i).numel() > 0 ? known(p, i) : Condition{true, ""};
  };
  return accept(
      {size(1),
       size(2),
       size(3),
       same_layout(p.in(0).layout == p.out(0).layout),
       {is_32_or_16_bit_float(p.in(0).dtype) || moves, "elements that are no floats only move"}});
}

std::unique_ptr<CudaKernel> create_resize(DeviceState&, const Problem& p) {
  const Layout layout = p.in(0).layout;
  const auto maps = as_stored(resize_maps(p, p.in(0).shape), layout);
  return make_axes(p, plan_axes(as_stored(p.in(0).shape.axes(), layout), maps), false,
                   !is_32_or_16_bit_float(p.in(0).dtype));
}

Acceptance accepts_resize_grad(const Problem& p) {
  return accept(accepts_resize(p), {floats(p.in(0).dtype)});
}

bool some_in(const Problem& p) { return p.in(0).numel() > 0; }

std::unique_ptr<CudaKernel> make_zeros(const Problem& p) {
  return make_cuda_kernel([bytes = p.out(0).bytes()](cudaStream_t stream, const Launch& l) {
    return cudaMemsetAsync(l.out(0), 0, bytes, stream);
  });
}

std::unique_ptr<CudaKernel> create_resize_grad(DeviceState&, const Problem& p) {
  if (!some_in(p)) return make_zeros(p);
  const Layout layout = p.in(0).layout;
  const auto maps = as_stored(resize_maps(p, p.out(0).shape), layout);
  return make_axes(p, plan_axes_back(as_stored(p.in(0).shape.axes(), layout), maps), true, false);
}

AxisMapKind pad_kind(const std::string& mode) {
  if (mode == "reflect") return AxisMapKind::kReflect;
  return mode == "wrap" ? AxisMapKind::kWrap : AxisMapKind::kEdge;
}

std::vector<AxisNumbers> pad_maps(const Attributes& attributes, const Shape& x, const Pads& pads) {
  std::vector<AxisNumbers> made(static_cast<size_t>(x.rank()));
  for (size_t i = 0; i < made.size(); ++i) {
    const int64_t before = pads.before[i], after = pads.after[i];
    AxisNumbers& m = made[i];
    m.kind = pad_kind(attributes.s("mode", "edge"));
    m.in = x.axes()[i];
    m.out = m.in + before + after;
    m.before = std::max<int64_t>(before, 0);
    m.first = std::max<int64_t>(-before, 0);
    m.kept = m.in + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
  }
  return made;
}

Acceptance accepts_pad(const Problem& p) {
  return accept({plain(p),
                 {p.attributes.s("mode", "constant") != "constant", "the padding is constant"},
                 known(p, 1),
                 known(p, 3)});
}

std::unique_ptr<CudaKernel> create_pad(DeviceState&, const Problem& p) {
  const auto maps = pad_maps(p.attributes, p.in(0).shape, known_pads(p));
  return make_axes(p, plan_axes(p.in(0).shape.axes(), maps), false, true);
}

std::unique_ptr<CudaKernel> create_pad_grad(DeviceState&, const Problem& p) {
  if (!some_in(p)) return make_zeros(p);
  const std::vector<int64_t> pads = p.attributes.ints("pads");
  const auto middle = pads.begin() + p.out(0).shape.rank();
  const auto maps =
      pad_maps(p.attributes, p.out(0).shape, {{pads.begin(), middle}, {middle, pads.end()}});
  return make_axes(p, plan_axes_back(p.in(0).shape.axes(), maps), true, false);
}

}  // namespace

void add_axis_maps(CudaImplementations& list) {
  list.insert(list.end(), {{"Resize", "own", accepts_resize, create_resize},
                           {"ofsdp.ResizeGrad", "own", accepts_resize_grad, create_resize_grad},
                           {"Pad", "own", accepts_pad, create_pad},
                           {"ofsdp.PadGrad", "own", accepts_plain_floats, create_pad_grad}});
}

}  // namespace ofsdp::kernels::cuda
