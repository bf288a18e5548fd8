// Resize: y = (M_1 x M_2 x ... x M_rank) x, a linear map of each axis: row o of M holds the weights
// with which output position o reads x (nearest, linear or cubic, at the place in x that
// coordinate_transformation_mode says; resize_map.h). What lies outside of x in tf_crop_and_resize
// gives extrapolation_value. dx is the same with every M transposed (ofsdp.ResizeGrad(dy, roi,
// scales, sizes), attribute x_shape), rows summed in the order of the outputs.
// https://onnx.ai/onnx/operators/onnx__Resize.html
#include <cmath>

#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/shape/resize_map.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace resize {

std::vector<double> known(const Constant* constant) {
  if (constant == nullptr) return {};
  return to_doubles(constant->desc, constant->bytes.data());
}

Result<ResizeMaps> infer_maps(const InferContext& c, const Shape& x) {
  const char* names[] = {"roi", "scales", "sizes"};
  for (size_t i = 1; i < 4; ++i) {
    if (c.has(i) && c.constant(i) == nullptr && c.inputs[i].numel() > 0) {
      return input_error("input '{}' must be known before the run, found {}", names[i - 1],
                         c.inputs[i].text());
    }
  }
  return resolve_resize(c.attributes, x,
                        {known(c.constant(1)), known(c.constant(2)), known(c.constant(3))});
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const ResizeMaps maps, infer_maps(c, c.inputs[0].shape));
  return std::vector{TensorDesc{c.inputs[0].dtype, maps.y}};
}

void grad(GradBuilder& b) {
  std::vector<Ref> inputs = {b.grad_output(0)};
  for (size_t i = 1; i < b.num_inputs(); ++i) inputs.push_back(b.input(i));
  Attributes attributes = b.attributes();
  attributes.set("x_shape", b.desc(b.input(0)).shape.axes());
  b.set_grad(0, b.emit1("ofsdp.ResizeGrad", inputs, attributes));
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  const Shape x(c.attributes.ints("x_shape"));
  OFSDP_ASSIGN_OR_RETURN(const ResizeMaps maps, infer_maps(c, x));
  if (maps.y != c.inputs[0].shape) {
    return input_error("expected {}, found {}", maps.y.text(), c.inputs[0].shape.text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, x}};
}

ResizeMaps known_maps(const Problem& p, const Shape& x) {
  return *resolve_resize(p.attributes, x,
                         {known(p.constant(1)), known(p.constant(2)), known(p.constant(3))});
}

// f(index in x, index in y, weight): every product of the map.
void for_each_weight(const ReferenceContext& c, const Shape& x, const auto& f) {
  const auto given = [&](size_t i) {
    return i < c.inputs.size() ? c.inputs[i].values : std::vector<double>{};
  };
  const ResizeMaps maps = *resolve_resize(c.attributes, x, {given(1), given(2), given(3)});
  const auto walk = [&](const auto& self, size_t axis, size_t in, size_t out, double w) -> void {
    if (axis == maps.axes.size()) return f(in, out, w);
    const AxisMap& m = maps.axes[axis];
    for (size_t o = 0; o < static_cast<size_t>(m.out); ++o) {
      if (m.outside[o])
        self(self, axis + 1, in * static_cast<size_t>(m.in), out * static_cast<size_t>(m.out) + o,
             NAN);
      for (auto k = static_cast<size_t>(m.first[o]); k < static_cast<size_t>(m.first[o + 1]); ++k) {
        self(self, axis + 1, in * static_cast<size_t>(m.in) + static_cast<size_t>(m.index[k]),
             out * static_cast<size_t>(m.out) + o, w * m.weight[k]);
      }
    }
  };
  walk(walk, 0, 0, 0, 1.0);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const auto fill = static_cast<double>(c.attributes.f("extrapolation_value", 0.0f));
  for_each_weight(c, c.inputs[0].desc.shape, [&](size_t in, size_t out, double w) {
    y.values[out] = w == w ? y.values[out] + w * c.inputs[0].values[in] : fill;
  });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  for_each_weight(c, dx.desc.shape, [&](size_t in, size_t out, double w) {
    if (w == w) dx.values[in] += w * c.inputs[0].values[out];
  });
  return {dx};
}

Acceptance accepts_grad(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  if (p.in(0).layout != p.out(0).layout) {
    return Acceptance::refuse("input and output of two layouts");
  }
  return accept_if(dtype == DType::kFloat32 || dtype == DType::kFloat64,
                   "weights need float32 or float64");
}
Acceptance accepts(const Problem& p) {
  const bool moves = is_nearest(p.attributes) && p.in(0).layout == p.out(0).layout;
  return moves ? accept_if(true, "") : accepts_grad(p);
}
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_resize(p, known_maps(p, p.in(0).shape),
                     static_cast<double>(p.attributes.f("extrapolation_value", 0.0f)));
}
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_resize_grad(p, known_maps(p, p.out(0).shape));
}

struct Given {
  const char* name;
  Shape x;
  std::vector<double> scales, sizes;
  Attributes attributes = {};
  std::vector<double> roi = {};
};

SampleCase sample(const Given& g, DType dtype = DType::kFloat32) {
  const auto vector = [](const std::vector<double>& v, DType type) {
    return v.empty() ? TensorDesc{} : TensorDesc{type, {static_cast<int64_t>(v.size())}};
  };
  SampleCase made{.name = g.name, .attributes = g.attributes};
  made.inputs = {{dtype, g.x},
                 vector(g.roi, DType::kFloat32),
                 vector(g.scales, DType::kFloat32),
                 vector(g.sizes, DType::kInt64)};
  made.fill = [g](size_t input, std::vector<double>& values) {
    if (input > 0) values = input == 1 ? g.roi : input == 2 ? g.scales : g.sizes;
  };
  made.constant_inputs = {1, 2, 3};
  return made;
}

std::vector<SampleCase> samples() {
  const auto mode = [](const char* name, const char* place, int64_t antialias = 0) {
    return Attributes{{"mode", std::string(name)},
                      {"coordinate_transformation_mode", std::string(place)},
                      {"antialias", antialias}};
  };
  const auto with = [](Attributes attributes, const char* name, Attribute value) {
    attributes.set(name, std::move(value));
    return attributes;
  };
  const auto text = [](const char* value) { return Attribute(std::string(value)); };
  const Shape x{2, 3, 5, 6};
  std::vector<SampleCase> cases;
  const std::vector<Given> list = {
      {"twice", x, {1, 1, 2, 2}, {}, mode("nearest", "asymmetric")},
      {"nearest_floor", x, {}, {2, 3, 7, 4}, with({}, "nearest_mode", text("floor"))},
      {"nearest_ceil", x, {}, {2, 3, 7, 4}, with({}, "nearest_mode", text("ceil"))},
      {"prefer_ceil", x, {}, {2, 3, 10, 3}, with({}, "nearest_mode", text("round_prefer_ceil"))},
      {"linear", x, {1, 1, 2, 2}, {}, mode("linear", "half_pixel")},
      {"linear_corners", x, {}, {2, 3, 8, 11}, mode("linear", "align_corners")},
      {"linear_down", x, {1, 1, 0.6, 0.5}, {}, mode("linear", "pytorch_half_pixel")},
      {"symmetric", x, {1, 1, 0.7, 1.4}, {}, mode("linear", "half_pixel_symmetric")},
      {"antialiased", x, {}, {2, 3, 2, 9}, mode("linear", "half_pixel", 1)},
      {"cubic", x, {1, 1, 1.7, 0.8}, {}, mode("cubic", "half_pixel")},
      {"cubic_excluding",
       x,
       {},
       {2, 3, 8, 4},
       with(mode("cubic", "half_pixel"), "exclude_outside", int64_t{1})},
      {"cubic_antialiased", {1, 2, 9, 8}, {}, {1, 2, 4, 3}, mode("cubic", "half_pixel", 1)},
      {"cropped",
       {1, 2, 6, 5},
       {},
       {1, 2, 4, 4},
       with(mode("linear", "tf_crop_and_resize"), "extrapolation_value", 10.0f),
       {0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7}},
      {"all_axes", {2, 3, 4}, {}, {3, 2, 7}, mode("linear", "half_pixel")},
      {"some_axes",
       x,
       {},
       {9, 8},
       with(mode("linear", "half_pixel"), "axes", std::vector<int64_t>{3, -2})},
      {"not_larger",
       x,
       {},
       {7, 20},
       with(with(mode("linear", "half_pixel"), "axes", std::vector<int64_t>{2, 3}),
            "keep_aspect_ratio_policy", text("not_larger"))},
      {"wide", {1, 40, 7, 7}, {}, {1, 40, 14, 13}, mode("linear", "align_corners")},
      {"same", x, {1, 1, 1, 1}, {}, mode("linear", "half_pixel")},
      {"empty", {0, 3, 5, 6}, {1, 1, 2, 2}, {}, mode("linear", "half_pixel")}};
  for (const Given& g : list) cases.push_back(sample(g));
  for (DType dtype : {DType::kFloat64, DType::kFloat16, DType::kUInt8, DType::kInt32}) {
    cases.push_back(sample(list[is_floating(dtype) ? 4 : 0], dtype));
    cases.back().name = dtype_name(dtype);
    cases.back().check_grad = dtype == DType::kFloat64;
    if (dtype == DType::kFloat16) cases.back().tolerance = 2e-3;
  }
  return cases;
}

std::vector<SampleCase> grad_samples() {
  std::vector<SampleCase> cases;
  for (SampleCase made : samples()) {
    if (!is_floating(made.inputs[0].dtype)) continue;
    std::vector<std::vector<double>> values(4);
    for (size_t i = 1; i < 4; ++i) made.fill(i, values[i]);
    const Shape x = made.inputs[0].shape;
    made.inputs[0].shape = resolve_resize(made.attributes, x, {values[1], values[2], values[3]})->y;
    made.attributes.set("x_shape", x.axes());
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace resize

void add_resize(Registry& registry) {
  using namespace resize;
  registry.add(make_op("Resize", {infer, grad, reference, samples},
                       with_half_floats<accepts, create>("axes"),
                       channels_last({0}, {0}, {.first_opset = 11, .constant_inputs = {1, 2, 3}})));
  registry.add_own(make_op("ResizeGrad", {infer_grad, nullptr, grad_reference, grad_samples},
                           with_half_floats<accepts_grad, create_grad>("axes"),
                           channels_last({0}, {0}, {.constant_inputs = {1, 2, 3}})));
}

}  // namespace ofsdp::kernels::ops
