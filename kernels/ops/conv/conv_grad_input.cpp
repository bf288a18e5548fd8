// ofsdp.ConvGradInput(dy, w) -> dx, attributes in conv_grad.h: dx[n, c, i] = sum over (m, o, k) that
// read i of w dy.
#include "kernels/core/standard_body.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/conv/conv_grad.h"
#include "kernels/ops/conv/conv_kernels.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

using DataDesc = dnnl::convolution_backward_data::primitive_desc;

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(c.attributes.ints("x_shape"))}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ConvShape s = conv_of_grad(c.attributes);
  RefTensor dx{c.output_descs[0], std::vector<double>(static_cast<size_t>(s.x.numel()))};
  for_each_product(s, [&](int64_t in, int64_t tap, int64_t out) {
    dx.values[static_cast<size_t>(in)] +=
        c.inputs[0].values[static_cast<size_t>(out)] * c.inputs[1].values[static_cast<size_t>(tap)];
  });
  return {dx};
}

DataDesc describe(const Problem& p, const ConvShape& s, Wish wish) {
  const ConvNumbers n = conv_numbers(s.window);
  const DType dtype = p.in(0).dtype;
  const auto hint = conv_forward_hint(s, dtype, wish, {});
  if (hint.get(true) == nullptr) return {};
  return onednn::first_quiet([&] {
    return DataDesc(onednn::engine(), dnnl::algorithm::convolution_direct, wished(wish, dtype, s.x),
                    onednn::any(dtype, weights_dims(s)), wished(wish, dtype, s.y), n.strides,
                    n.dilations, n.pads_begin, n.pads_end, hint, onednn::attributes(),
                    /*allow_empty=*/true);
  });
}

DataDesc describe(const Problem& p, const ConvShape& s) {
  const auto each = [](const auto&... args) { return describe(args...); };
  return best_description(each, p, s, Wish::kChannelsLast, Wish::kAny);
}

bool accepts(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  return has_onednn_dtype(p) && (sums_nothing(s) || describe(p, s).get(true) != nullptr);
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  return onednn::make_kernel(
      describe(p, s),
      {{DNNL_ARG_DIFF_DST, false, 0, onednn::desc_of(p.in(0))},
       {DNNL_ARG_WEIGHTS, false, 1, onednn::row_major(p.in(1).dtype, weights_dims(s))},
       {DNNL_ARG_DIFF_SRC, true, 0, onednn::desc_of(p.out(0))}});
}

std::vector<SampleCase> samples() { return conv_grad_samples(&ConvShape::y, &ConvShape::w, 1); }
void conv_grad_input_body(BodyBuilder& b) {
  const ConvShape s = conv_of_grad(b.attributes());
  const Window& w = s.window;
  std::vector<int64_t> rest;  // positions behind the last that a window sees
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

}  // namespace

bool accepts_conv_grad_input(const Problem& p) { return accepts(p); }
std::unique_ptr<Kernel> make_conv_grad_input(const Problem& p) { return create(p); }

void add_conv_grad_input(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "ConvGradInput",
                .min_inputs = 2,
                .infer = infer,
                .body = conv_grad_input_body,
                .reference = reference,
                .cpu = {{"onednn", accepts, create},
                        {"loops", accepts_conv_loops, make_conv_grad_input_loops},
                        in_float32<accepts, create>()},
                .samples = samples,
                .layout = LayoutRule::kChannelsLast,
                .channels_last_inputs = {0},
                .channels_last_outputs = {0}});
}

}  // namespace ofsdp::kernels::ops
