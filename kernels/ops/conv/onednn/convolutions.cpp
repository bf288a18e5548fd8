// Convolutions by oneDNN. [Note: layouts of convolutions] oneDNN gets channels-last activations:
// their kernels are the fastest here and call no malloc; plain operands are reordered in the
// workspace. For weight gradients oneDNN chooses (it takes its blocked layout: at 64 x 64 x 24 x
// 24, 0.2 ms of reorders beat 3 ms). With only AVX2, oneDNN also chooses for input gradients (64 x
// 32 x 26 x 26: 88 GFLOP/s with the reorders against 63), and weight gradients of one channel stay
// channels last (54 against 6). Weights stay plain outside; reordering them costs microseconds.
#include "kernels/cpu/onednn/bridge.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// strides, dilations and pads in oneDNN's terms (dilation 0 is dense).
struct ConvNumbers {
  onednn::Dims strides, dilations, pads_begin, pads_end;
};

enum class Wish { kChannelsLast, kAny };

ConvNumbers conv_numbers(const Window& w) {
  onednn::Dims dilations = w.used(w.dilations);
  for (int64_t& dilation : dilations) --dilation;
  // oneDNN wants pads that fit the output exactly: negative if no window reaches the end.
  onednn::Dims pads_end;
  for (size_t axis = 3 - static_cast<size_t>(w.axes); axis < 3; ++axis) {
    const int64_t last = w.position(axis, w.out[axis] - 1, w.kernel[axis] - 1);
    pads_end.push_back(last - (w.in[axis] - 1));
  }
  return {w.used(w.strides), dilations, w.used(w.pads_begin), pads_end};
}

onednn::Desc wished(Wish wish, DType dtype, const Shape& shape) {
  return wish == Wish::kAny ? onednn::any(dtype, shape.axes())
                            : onednn::channels_last(dtype, shape.axes());
}

// Adds a leading group axis if group > 1.
onednn::Dims weights_dims(const ConvShape& s) {
  onednn::Dims dims = s.w.axes();
  if (s.group > 1) {
    dims[0] /= s.group;
    dims.insert(dims.begin(), s.group);
  }
  return dims;
}

// Describes the forward convolution, which a gradient's primitive_desc takes as a hint. Empty if
// oneDNN has none.
dnnl::convolution_forward::primitive_desc conv_forward(const ConvShape& s, DType dtype, Wish wish,
                                                       const onednn::Desc& bias) {
  const ConvNumbers n = conv_numbers(s.window);
  return {onednn::engine(),
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          wished(wish, dtype, s.x),
          onednn::any(dtype, weights_dims(s)),
          bias,
          wished(wish, dtype, s.y),
          n.strides,
          n.dilations,
          n.pads_begin,
          n.pads_end,
          onednn::attributes(),
          /*allow_empty=*/true};
}

dnnl::convolution_forward::primitive_desc describe(const Problem& p, const ConvShape& s,
                                                   Wish wish) {
  const DType dtype = p.in(0).dtype;
  const onednn::Desc bias = p.has_in(2) ? onednn::row_major(dtype, {s.w[0]}) : onednn::Desc();
  return onednn::first_quiet([&] { return conv_forward(s, dtype, wish, bias); });
}

// Describes the channels-last kernel, or, if that is plain loops, the kernel for the layout that
// oneDNN prefers.
dnnl::convolution_forward::primitive_desc describe(const Problem& p, const ConvShape& s) {
  auto pd = describe(p, s, Wish::kChannelsLast);
  if (onednn::is_fast(pd)) return pd;
  return describe(p, s, Wish::kAny);
}

// Returns the first wish that gets a fast kernel without malloc; else any that exists.
template <auto describe>
auto best(const Problem& p, const ConvShape& s, Wish first, Wish second) {
  auto pd = describe(p, s, first);
  if (onednn::is_fast(pd) && !onednn::is_noisy(pd.impl_info_str())) return pd;
  auto other = describe(p, s, second);
  return other.get(true) != nullptr ? other : pd;
}

Acceptance accepts_made(const auto& pd) {
  if (pd.get(true) == nullptr) return Acceptance::refuse(onednn::kNoPrimitive);
  return accept_if(onednn::is_fast(pd), "oneDNN has plain loops alone");
}

template <auto describe>
Acceptance accepts(const Problem& p) {
  if (!onednn::has_type(p.in(0).dtype)) return Acceptance::refuse(onednn::kNoType);
  const ConvShape s = conv_of_grad(p.attributes);
  return sums_nothing(s) ? accept_if(true, "") : accepts_made(describe(p, s));
}

// --- gradients ---

using DataDesc = dnnl::convolution_backward_data::primitive_desc;

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

using WeightsDesc = dnnl::convolution_backward_weights::primitive_desc;

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

}  // namespace

Acceptance onednn_accepts_conv(const Problem& p) {
  if (!onednn::has_type(p.in(0).dtype)) return Acceptance::refuse(onednn::kNoType);
  if (has_relu(p.attributes) && !p.all_dtype(DType::kFloat32)) {
    return Acceptance::refuse("a fused activation of another type than float32");
  }
  if (p.out(0).numel() == 0) return accept_if(true, "");
  const ConvShape s = conv_of(p);
  return s.w.numel() == 0 ? Acceptance::refuse(onednn::kNoPrimitive) : accepts_made(describe(p, s));
}

std::unique_ptr<Kernel> make_onednn_conv(const Problem& p) {
  if (p.out(0).numel() == 0) return make_kernel([](const KernelArgs&) {});
  const ConvShape s = conv_of(p);
  std::vector<onednn::Binding> bindings = {
      {DNNL_ARG_SRC, false, 0, onednn::desc_of(p.in(0))},
      {DNNL_ARG_WEIGHTS, false, 1, onednn::row_major(p.in(1).dtype, weights_dims(s))},
      {DNNL_ARG_DST, true, 0, onednn::desc_of(p.out(0))}};
  if (p.has_in(2)) bindings.push_back({DNNL_ARG_BIAS, false, 2, onednn::desc_of(p.in(2))});
  std::unique_ptr<Kernel> kernel = onednn::make_kernel(describe(p, s), bindings);
  return has_relu(p.attributes) ? with_relu(std::move(kernel), p.out(0).numel())
                                : std::move(kernel);
}

Acceptance onednn_accepts_conv_grad_input(const Problem& p) { return accepts<input_describe>(p); }

std::unique_ptr<Kernel> make_onednn_conv_grad_input(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  return onednn::make_kernel(
      input_describe(p, s),
      {{DNNL_ARG_DIFF_DST, false, 0, onednn::desc_of(p.in(0))},
       {DNNL_ARG_WEIGHTS, false, 1, onednn::row_major(p.in(1).dtype, weights_dims(s))},
       {DNNL_ARG_DIFF_SRC, true, 0, onednn::desc_of(p.out(0))}});
}

Acceptance onednn_accepts_conv_grad_weights(const Problem& p) {
  return accepts<weights_describe>(p);
}

std::unique_ptr<Kernel> make_onednn_conv_grad_weights(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  std::vector<onednn::Binding> bindings = {
      {DNNL_ARG_SRC, false, 0, onednn::desc_of(p.in(0))},
      {DNNL_ARG_DIFF_DST, false, 1, onednn::desc_of(p.in(1))},
      {DNNL_ARG_DIFF_WEIGHTS, true, 0, onednn::row_major(p.out(0).dtype, weights_dims(s))}};
  if (p.has_out(1)) bindings.push_back({DNNL_ARG_DIFF_BIAS, true, 1, onednn::desc_of(p.out(1))});
  return onednn::make_kernel(weights_describe(p, s), bindings);
}

}  // namespace ofsdp::kernels::ops
