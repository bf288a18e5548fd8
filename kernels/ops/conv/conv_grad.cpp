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

ConvShape conv_of_grad(const Attributes& attributes) {
  return known_conv(attributes, Shape(attributes.ints("x_shape")),
                    Shape(attributes.ints("w_shape")));
}

// Returns whether some operand is empty: the gradients are zeros.
bool sums_nothing(const ConvShape& s) {
  return s.x.numel() == 0 || s.y.numel() == 0 || s.w.numel() == 0;
}

std::unique_ptr<Kernel> make_conv_zeros() {
  return make_kernel([](const KernelArgs& a) {
    for (const TensorView& view : a.outputs) {
      if (view.data != nullptr) std::memset(view.data, 0, view.desc.bytes());
    }
  });
}

// ONNX's pads: all begins, then all ends.
std::vector<int64_t> onnx_pads(const Window& w) {
  std::vector<int64_t> pads = w.used(w.pads_begin);
  const auto ends = w.used(w.pads_end);
  pads.insert(pads.end(), ends.begin(), ends.end());
  return pads;
}

// Returns the first wish that gets more than plain loops and no malloc; else any that exists.
template <auto describe>
auto best(const Problem& p, const ConvShape& s, Wish first, Wish second) {
  auto pd = describe(p, s, first);
  if (pd.get(true) != nullptr && !onednn::is_reference(pd.impl_info_str()) &&
      !onednn::is_noisy(pd.impl_info_str())) {
    return pd;
  }
  auto other = describe(p, s, second);
  return other.get(true) != nullptr ? other : pd;
}

template <auto describe>
Acceptance accepts(const Problem& p) {
  if (!onednn::has_type(p.in(0).dtype)) return Acceptance::refuse(onednn::kNoType);
  const ConvShape s = conv_of_grad(p.attributes);
  return accept_if(sums_nothing(s) || describe(p, s).get(true) != nullptr, onednn::kNoPrimitive);
}

// --- ConvGradInput ---

using DataDesc = dnnl::convolution_backward_data::primitive_desc;

std::vector<RefTensor> input_reference(const ReferenceContext& c) {
  const ConvShape s = conv_of_grad(c.attributes);
  RefTensor dx{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.x.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    dx[in] += c.inputs[0][out] * c.inputs[1][tap];
  });
  return {dx};
}

DataDesc input_desc_of(const Problem& p, const ConvShape& s, Wish wish) {
  const ConvNumbers n = conv_numbers(s.window);
  const DType dtype = p.in(0).dtype;
  const auto hint = conv_forward(s, dtype, wish, {});
  if (hint.get(true) == nullptr) return {};
  return onednn::first_quiet([&] {
    return DataDesc(onednn::engine(), dnnl::algorithm::convolution_direct, wished(wish, dtype, s.x),
                    onednn::any(dtype, weights_dims(s)), wished(wish, dtype, s.y), n.strides,
                    n.dilations, n.pads_begin, n.pads_end, hint, onednn::attributes(),
                    /*allow_empty=*/true);
  });
}

DataDesc input_describe(const Problem& p, const ConvShape& s) {
  // [Note: layouts of convolutions]
  if (!onednn::has_avx512()) return best<input_desc_of>(p, s, Wish::kAny, Wish::kChannelsLast);
  return best<input_desc_of>(p, s, Wish::kChannelsLast, Wish::kAny);
}

std::unique_ptr<Kernel> input_create(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  return onednn::make_kernel(
      input_describe(p, s),
      {{DNNL_ARG_DIFF_DST, false, 0, onednn::desc_of(p.in(0))},
       {DNNL_ARG_WEIGHTS, false, 1, onednn::row_major(p.in(1).dtype, weights_dims(s))},
       {DNNL_ARG_DIFF_SRC, true, 0, onednn::desc_of(p.out(0))}});
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

using WeightsDesc = dnnl::convolution_backward_weights::primitive_desc;

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

WeightsDesc weights_desc_of(const Problem& p, const ConvShape& s, Wish wish) {
  const ConvNumbers n = conv_numbers(s.window);
  const DType dtype = p.in(0).dtype;
  const onednn::Desc bias = p.has_out(1) ? onednn::row_major(dtype, {s.w[0]}) : onednn::Desc();
  const auto hint = conv_forward(s, dtype, wish, bias);
  if (hint.get(true) == nullptr) return {};
  return onednn::first_quiet([&] {
    return WeightsDesc(onednn::engine(), dnnl::algorithm::convolution_direct,
                       wished(wish, dtype, s.x), onednn::any(dtype, weights_dims(s)), bias,
                       wished(wish, dtype, s.y), n.strides, n.dilations, n.pads_begin, n.pads_end,
                       hint, onednn::attributes(), /*allow_empty=*/true);
  });
}

WeightsDesc weights_describe(const Problem& p, const ConvShape& s) {
  if (s.x[1] == 1 && !onednn::has_avx512())
    return best<weights_desc_of>(p, s, Wish::kChannelsLast, Wish::kAny);
  return best<weights_desc_of>(p, s, Wish::kAny, Wish::kChannelsLast);
}

std::unique_ptr<Kernel> weights_create(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  std::vector<onednn::Binding> bindings = {
      {DNNL_ARG_SRC, false, 0, onednn::desc_of(p.in(0))},
      {DNNL_ARG_DIFF_DST, false, 1, onednn::desc_of(p.in(1))},
      {DNNL_ARG_DIFF_WEIGHTS, true, 0, onednn::row_major(p.out(0).dtype, weights_dims(s))}};
  if (p.has_out(1)) bindings.push_back({DNNL_ARG_DIFF_BIAS, true, 1, onednn::desc_of(p.out(1))});
  return onednn::make_kernel(weights_describe(p, s), bindings);
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

Acceptance accepts_conv_grad_input(const Problem& p) { return accepts<input_describe>(p); }
std::unique_ptr<Kernel> make_conv_grad_input(const Problem& p) { return input_create(p); }

void add_conv_grad(Registry& registry) {
  registry.add_own(
      make_op("ConvGradInput", {infer_shape_of("x_shape"), nullptr, input_reference},
              {{"onednn", accepts_conv_grad_input, input_create},
               {"loops", accepts_conv_loops, make_conv_grad_input_loops},
               in_float32<accepts_conv_grad_input, input_create>()},
              channels_last({0}, {0}, {.min_inputs = 2, .body = conv_grad_input_body})));
  registry.add_own(
      make_op("ConvGradWeights", {weights_infer, nullptr, weights_reference},
              {{"onednn", accepts<weights_describe>, weights_create},
               {"loops", accepts_conv_loops, make_conv_grad_weights_loops},
               in_float32<accepts<weights_describe>, weights_create>()},
              channels_last({0, 1}, {}, {.min_inputs = 2, .body = conv_grad_weights_body})));
}

}  // namespace ofsdp::kernels::ops
