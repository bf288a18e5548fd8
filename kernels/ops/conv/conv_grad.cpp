// The gradients of y = conv(x, w) + b. Both nodes carry the attributes of Conv, explicit pads,
// x_shape and w_shape.
//
// ofsdp.ConvGradInput(dy, w) -> dx: dx[n, c, i] = sum over (m, o, k) that read i of w dy.
// ofsdp.ConvGradWeights(x, dy) -> dw, db: dw[m, c, k] = sum over (n, o) of x[.. o s - p + k d] dy,
// db[m] = sum over (n, o) of dy, computed only when wanted.
#include "kernels/core/standard_body.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// ONNX's pads: all begins, then all ends.
std::vector<int64_t> onnx_pads(const Window& w) {
  std::vector<int64_t> pads = w.used(w.pads_begin);
  const auto ends = w.used(w.pads_end);
  pads.insert(pads.end(), ends.begin(), ends.end());
  return pads;
}

// --- ConvGradInput ---

std::vector<RefTensor> input_reference(const ReferenceContext& c) {
  const ConvShape s = conv_of_grad(c.attributes);
  RefTensor dx{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.x.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    dx[in] += c.inputs[0][out] * c.inputs[1][tap];
  });
  return {dx};
}

void conv_grad_input_body(BodyBuilder& b) {
  const ConvShape s = conv_of_grad(b.attributes());
  const Window& w = s.window;
  std::vector<int64_t> rest;  // positions after the last that a window sees
  for (size_t axis = 3 - static_cast<size_t>(w.axes); axis < 3; ++axis) {
    const int64_t reached = w.position(axis, w.out[axis] - 1, w.kernel[axis] - 1) + 1;
    rest.push_back(w.in[axis] + w.pads_end[axis] - reached);
  }
  b.set_output(0, b.emit1("ConvTranspose", {b.input(0), b.input(1)},
                          {{"group", s.group},
                           {"strides", w.used(w.strides)},
                           {"dilations", w.used(w.dilations)},
                           {"kernel_shape", w.used(w.kernel)},
                           {"pads", onnx_pads(w)},
                           {"output_padding", rest}}));
}

// --- ConvGradWeights ---

Result<std::vector<TensorDesc>> weights_infer(const InferContext& c) {
  const Shape w(c.attributes.ints("w_shape"));
  return std::vector{TensorDesc{c.inputs[0].dtype, w}, TensorDesc{c.inputs[0].dtype, {w[0]}}};
}

std::vector<RefTensor> weights_reference(const ReferenceContext& c) {
  const ConvShape s = conv_of_grad(c.attributes);
  RefTensor dw{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.w.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    dw[tap] += c.inputs[0][in] * c.inputs[1][out];
  });
  if (c.output_descs.size() < 2 || !c.output_descs[1].present()) return {dw};
  RefTensor db{c.output_descs[1], std::vector<double>(static_cast<size_t>(s.w[0]))};
  for (size_t i = 0; i < c.inputs[1].values.size(); ++i) {
    db.values[i / static_cast<size_t>(s.window.out_size()) % db.values.size()] +=
        c.inputs[1].values[i];
  }
  return {dw, db};
}

// dw as a convolution of x by dy: samples are its channels, taps its positions. Positions after the
// taps are those that strides leave over.
Ref weights_of_group(BodyBuilder& b, const ConvShape& s, Ref x, Ref dy) {
  const Window& w = s.window;
  std::vector<int64_t> swapped{1, 0};
  for (int axis = 2; axis < s.x.rank(); ++axis) swapped.push_back(axis);
  Ref made = b.emit1(
      "Conv", {b.transpose(x, swapped), b.transpose(dy, swapped)},
      {{"strides", w.used(w.dilations)}, {"dilations", w.used(w.strides)}, {"pads", onnx_pads(w)}});
  for (int axis = 2; axis < s.w.rank(); ++axis) made = b.slice(made, axis, 0, s.w[axis]);
  return b.transpose(made, swapped);
}

void conv_grad_weights_body(BodyBuilder& b) {
  const ConvShape s = conv_of_grad(b.attributes());
  const Ref x = b.input(0), dy = b.input(1);
  if (b.wants(0)) {
    const int64_t channels = s.x[1] / s.group, outputs = s.y[1] / s.group;
    std::vector<Ref> parts;
    for (int64_t g = 0; g < s.group; ++g) {
      parts.push_back(weights_of_group(b, s, b.slice(x, 1, g * channels, (g + 1) * channels),
                                       b.slice(dy, 1, g * outputs, (g + 1) * outputs)));
    }
    b.set_output(0,
                 parts.size() == 1 ? parts[0] : b.emit1("Concat", parts, {{"axis", int64_t{0}}}));
  }
  if (!b.wants(1)) return;
  std::vector<int64_t> axes{0};
  for (int axis = 2; axis < s.y.rank(); ++axis) axes.push_back(axis);
  b.set_output(1, b.reshape(b.sum(dy, axes), b.output_desc(1).shape));
}

}  // namespace

void add_conv_grad(Registry& registry) {
  registry.add_own(
      make_op("ConvGradInput", {infer_shape_of("x_shape"), nullptr, input_reference},
              {{"winograd", winograd_accepts_conv_grad_input, make_winograd_conv_grad_input},
               {"onednn", onednn_accepts_conv_grad_input, make_onednn_conv_grad_input},
               {"columns", columns_accept_conv_grad, make_columns_conv_grad_input},
               {"loops", accepts_conv_loops, make_conv_grad_input_loops},
               in_float32<LibraryConvGradInput::accepts, LibraryConvGradInput::create>()},
              channels_last({0}, {0}, {.min_inputs = 2, .body = conv_grad_input_body})));
  registry.add_own(
      make_op("ConvGradWeights", {weights_infer, nullptr, weights_reference},
              {{"winograd", winograd_accepts_conv_grad_weights, make_winograd_conv_grad_weights},
               {"onednn", onednn_accepts_conv_grad_weights, make_onednn_conv_grad_weights},
               {"columns", columns_accept_conv_grad, make_columns_conv_grad_weights},
               {"loops", accepts_conv_loops, make_conv_grad_weights_loops},
               in_float32<LibraryConvGradWeights::accepts, LibraryConvGradWeights::create>()},
              channels_last({0, 1}, {}, {.min_inputs = 2, .body = conv_grad_weights_body})));
}

}  // namespace ofsdp::kernels::ops
