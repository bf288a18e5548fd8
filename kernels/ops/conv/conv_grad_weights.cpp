// ofsdp.ConvGradWeights(x, dy) -> dw, db, attributes in conv_grad.h:
// dw[m, c, k] = sum over (n, o) of x[.. o s - p + k d] dy, db[m] = sum over (n, o) of dy, which is
// made only when wanted.
#include "kernels/core/standard_body.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/conv/conv_grad.h"
#include "kernels/ops/conv/conv_kernels.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

using WeightsDesc = dnnl::convolution_backward_weights::primitive_desc;

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape w(c.attributes.ints("w_shape"));
  return std::vector{TensorDesc{c.inputs[0].dtype, w}, TensorDesc{c.inputs[0].dtype, {w[0]}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ConvShape s = conv_of_grad(c.attributes);
  RefTensor dw{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.w.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    dw.values[static_cast<size_t>(tap)] +=
        c.inputs[0].values[static_cast<size_t>(in)] * c.inputs[1].values[static_cast<size_t>(out)];
  });
  if (c.output_descs.size() < 2 || !c.output_descs[1].present()) return {dw};
  RefTensor db{c.output_descs[1], std::vector<double>(static_cast<size_t>(s.w[0]))};
  for (size_t i = 0; i < c.inputs[1].values.size(); ++i) {
    db.values[i / static_cast<size_t>(s.window.out_size()) % db.values.size()] +=
        c.inputs[1].values[i];
  }
  return {dw, db};
}

WeightsDesc describe(const Problem& p, const ConvShape& s, Wish wish) {
  const ConvNumbers n = conv_numbers(s.window);
  const DType dtype = p.in(0).dtype;
  const onednn::Desc bias = p.has_out(1) ? onednn::row_major(dtype, {s.w[0]}) : onednn::Desc();
  const auto hint = conv_forward_hint(s, dtype, wish, bias);
  if (hint.get(true) == nullptr) return {};
  return onednn::first_quiet([&] {
    return WeightsDesc(onednn::engine(), dnnl::algorithm::convolution_direct,
                       wished(wish, dtype, s.x), onednn::any(dtype, weights_dims(s)), bias,
                       wished(wish, dtype, s.y), n.strides, n.dilations, n.pads_begin, n.pads_end,
                       hint, onednn::attributes(), /*allow_empty=*/true);
  });
}

WeightsDesc describe(const Problem& p, const ConvShape& s) {
  const auto each = [](const auto&... args) { return describe(args...); };
  return best_description(each, p, s, Wish::kAny, Wish::kChannelsLast);
}

bool accepts(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  return has_onednn_dtype(p) && (sums_nothing(s) || describe(p, s).get(true) != nullptr);
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  std::vector<onednn::Binding> bindings = {
      {DNNL_ARG_SRC, false, 0, onednn::desc_of(p.in(0))},
      {DNNL_ARG_DIFF_DST, false, 1, onednn::desc_of(p.in(1))},
      {DNNL_ARG_DIFF_WEIGHTS, true, 0, onednn::row_major(p.out(0).dtype, weights_dims(s))}};
  if (p.has_out(1)) {
    bindings.push_back({DNNL_ARG_DIFF_BIAS, true, 1, onednn::desc_of(p.out(1))});
  }
  return onednn::make_kernel(describe(p, s), bindings);
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> cases = conv_grad_samples(&ConvShape::x, &ConvShape::y, 2);
  cases.push_back(conv_grad_samples(&ConvShape::x, &ConvShape::y, 1)[0]);
  cases.back().name = "no_bias";
  return cases;
}

// dw as a convolution of x by dy: samples are its channels, taps its positions. What positions there
// are behind the taps is what strides leave over.
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

void add_conv_grad_weights(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "ConvGradWeights",
                .min_inputs = 2,
                .infer = infer,
                .body = conv_grad_weights_body,
                .reference = reference,
                .cpu = {{"onednn", accepts, create},
                        {"loops", accepts_conv_loops, make_conv_grad_weights_loops},
                        in_float32<accepts, create>()},
                .samples = samples,
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0, 1},
                .channels_last_outputs = {}});
}

}  // namespace ofsdp::kernels::ops
