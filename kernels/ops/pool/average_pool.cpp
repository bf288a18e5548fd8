// AveragePool: y[n, c, o] = sum over taps k of x[n, c, o s - p + k d], positions outside x as 0,
// divided by the number of taps inside x; with count_include_pad inside x and its padding (what
// ceil_mode reaches past the padding never counts). A window without any tap gives 0.
// dx[i] = sum over the outputs o that read i of dy[o] / count[o] (ofsdp.AveragePoolGrad(dy),
// attributes of the window and x_shape); rows of outputs are added in their order.
// https://onnx.ai/onnx/operators/onnx__AveragePool.html
#include "kernels/core/standard_body.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pool/average_pool_kernel.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Window w, infer_pool(c.attributes, c.inputs[0].shape));
  return std::vector{TensorDesc{c.inputs[0].dtype, pool_output(w, c.inputs[0].shape)}};
}

void grad(GradBuilder& b) {
  const Shape& x = b.desc(b.input(0)).shape;
  Attributes made = pool_attributes(b.attributes(), known_pool(b.attributes(), x), x);
  made.set("count_include_pad", b.attributes().i("count_include_pad", 0));
  b.set_grad(0, b.emit1("ofsdp.AveragePoolGrad", {b.grad_output(0)}, made));
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(c.attributes.ints("x_shape"))}};
}

// f(index in x, index in y, scale): every product of the sum.
template <typename F>
void for_each_term(const Attributes& attributes, const Shape& x, const F& f) {
  const Window w = known_pool(attributes, x);
  const std::vector<double> scale = average_scales(attributes, w);
  for (int64_t plane = 0; plane < x.numel(0, 2); ++plane) {
    for_each_tap(w, [&](int64_t out, int64_t, int64_t in) {
      f(static_cast<size_t>(plane * w.in_size() + in),
        static_cast<size_t>(plane * w.out_size() + out), scale[static_cast<size_t>(out)]);
    });
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0],
              std::vector<double>(static_cast<size_t>(c.output_descs[0].numel()))};
  for_each_term(c.attributes, c.inputs[0].desc.shape, [&](size_t in, size_t out, double s) {
    y.values[out] += s * c.inputs[0].values[in];
  });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0],
               std::vector<double>(static_cast<size_t>(c.output_descs[0].numel()))};
  for_each_term(c.attributes, dx.desc.shape, [&](size_t in, size_t out, double s) {
    dx.values[in] += s * c.inputs[0].values[out];
  });
  return {dx};
}

template <typename T>
bool accepts(const Problem& p) {
  return p.all_dtype(dtype_of<T>()) && p.in(0).layout == p.out(0).layout;
}

using Ints = std::vector<int64_t>;

std::vector<SampleCase> samples() {
  const auto sample = [](const char* name, Shape x, Attributes attributes,
                         DType dtype = DType::kFloat32) {
    return SampleCase{
        .name = name, .attributes = std::move(attributes), .inputs = {{dtype, std::move(x)}}};
  };
  const Attributes padded{{"kernel_shape", Ints{3, 3}},
                          {"strides", Ints{2, 2}},
                          {"pads", Ints{1, 1, 0, 2}},
                          {"ceil_mode", int64_t{1}}};
  Attributes included = padded;
  included.set("count_include_pad", int64_t{1});
  std::vector<SampleCase> cases = {
      sample("halves", {2, 5, 6, 8}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}),
      sample("overlapping", {2, 3, 7, 40}, {{"kernel_shape", Ints{3, 2}}}),
      sample("padded_ceil", {2, 3, 7, 10}, padded),
      sample("include_pad", {2, 3, 7, 10}, included),
      sample("dilated", {1, 2, 9, 8}, {{"kernel_shape", Ints{3, 3}}, {"dilations", Ints{2, 3}}}),
      sample("same", {1, 20, 7, 6},
             {{"kernel_shape", Ints{3, 2}},
              {"strides", Ints{2, 2}},
              {"auto_pad", std::string("SAME_LOWER")}}),
      sample("larger_than_input", {2, 3, 4, 5},
             {{"kernel_shape", Ints{6, 8}}, {"strides", Ints{6, 8}}, {"ceil_mode", int64_t{1}}}),
      sample("line", {2, 3, 140}, {{"kernel_shape", Ints{3}}, {"strides", Ints{3}}}),
      sample("volume", {1, 2, 5, 4, 6}, {{"kernel_shape", Ints{2, 2, 3}}}),
      sample("double", {2, 3, 7, 10}, padded, DType::kFloat64),
      sample("half", {2, 3, 7, 10}, padded, DType::kFloat16),
      sample("empty_batch", {0, 3, 4, 4}, {{"kernel_shape", Ints{2, 2}}})};
  for (SampleCase& s : cases) {
    if (s.name == "half") s.tolerance = 1e-3;
    if (s.name == "half") s.check_grad = false;
  }
  return cases;
}

std::vector<SampleCase> grad_samples() {
  std::vector<SampleCase> cases = samples();
  for (SampleCase& s : cases) {
    const Shape x = s.inputs[0].shape;
    const Window w = known_pool(s.attributes, x);
    const Attributes given = s.attributes;
    s.attributes = pool_attributes(given, w, x);
    s.attributes.set("count_include_pad", given.i("count_include_pad", 0));
    s.inputs[0].shape = pool_output(w, x);
  }
  return cases;
}

// dy / count spread over the windows by a transposed convolution with ones, padding cut off.
void average_pool_grad_body(BodyBuilder& b) {
  const Shape& x = b.output_desc(0).shape;
  const Window w = known_pool(b.attributes(), x);
  const Ref dy = b.input(0);
  std::vector<int64_t> scales{1, 1}, ones{x[1], 1}, rest;
  for (size_t axis = 3 - static_cast<size_t>(w.axes); axis < 3; ++axis) {
    scales.push_back(w.out[axis]);
    ones.push_back(w.kernel[axis]);
    const int64_t reached = w.position(axis, w.out[axis] - 1, w.kernel[axis] - 1) + 1;
    rest.push_back(std::max<int64_t>(w.in[axis] - reached, 0));
  }
  Constant made{{b.desc(dy).dtype, Shape(scales)}, {}};
  made.bytes.resize(made.desc.bytes());
  from_doubles(average_scales(b.attributes(), w), made.desc, made.bytes.data());
  const Ref each = b.mul(dy, b.constant(std::make_shared<const Constant>(std::move(made))));
  Ref dx = b.emit1("ConvTranspose", {each, b.emit1("Expand", {b.like(dy, 1), b.ints(ones)})},
                   {{"group", x[1]},
                    {"strides", w.used(w.strides)},
                    {"dilations", w.used(w.dilations)},
                    {"kernel_shape", w.used(w.kernel)},
                    {"output_padding", rest}});
  for (int axis = 0; axis < w.axes; ++axis) {
    const auto at = static_cast<size_t>(3 - w.axes + axis);
    dx = b.slice(dx, 2 + axis, w.pads_begin[at], w.pads_begin[at] + w.in[at]);
  }
  b.set_output(0, dx);
}

}  // namespace

void add_average_pool(Registry& registry) {
  registry.add({.name = "AveragePool",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts<float>, make_average_pool},
                        {"float64", accepts<double>, make_average_pool},
                        in_float32<accepts<float>, make_average_pool>()},
                .samples = samples,
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0},
                .channels_last_outputs = {0}});
  registry.add({.domain = kOwnDomain,
                .name = "AveragePoolGrad",
                .infer = infer_grad,
                .body = average_pool_grad_body,
                .reference = grad_reference,
                .cpu = {{"loops", accepts<float>, make_average_pool_grad},
                        {"float64", accepts<double>, make_average_pool_grad},
                        in_float32<accepts<float>, make_average_pool_grad>()},
                .samples = grad_samples,
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0},
                .channels_last_outputs = {0}});
}

}  // namespace ofsdp::kernels::ops
