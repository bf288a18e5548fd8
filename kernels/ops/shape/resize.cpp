// Resize: y = (M_1 x M_2 x ... x M_rank) x, a linear map of each axis: row o of M holds the weights
// with which output position o reads x (nearest, linear or cubic, at the place in x that
// coordinate_transformation_mode says; resize_map.h). What lies outside of x in tf_crop_and_resize
// gives extrapolation_value. dx is the same with every M transposed (ofsdp.ResizeGrad(dy, roi,
// scales, sizes), attribute x_shape), rows summed in the order of the outputs.
// https://onnx.ai/onnx/operators/onnx__Resize.html

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

}  // namespace resize

void add_resize(Registry& registry) {
  using namespace resize;
  registry.add(make_op("Resize", {infer, grad, reference},
                       with_half_floats<accepts, create>("axes"),
                       channels_last({0}, {0}, {.first_opset = 11, .constant_inputs = {1, 2, 3}})));
  registry.add_own(make_op("ResizeGrad", {infer_grad, nullptr, grad_reference},
                           with_half_floats<accepts_grad, create_grad>("axes"),
                           channels_last({0}, {0}, {.constant_inputs = {1, 2, 3}})));
}

}  // namespace ofsdp::kernels::ops
