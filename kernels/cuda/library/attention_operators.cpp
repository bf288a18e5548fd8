// Attention and its gradient without cuDNN: on tensor cores (kernels/cuda/tensor_attention.h), else
// on CUDA cores (kernels/cuda/attention.h). Cached keys and the outputs of scores are not here.
// ofsdp.AttentionWithStatistics keeps what its gradient reads then instead of finding it.
#include "kernels/cuda/library/attention_extent.h"
#include "kernels/cuda/library/implementations.h"
#include "kernels/cuda/library/operands.h"
#include "kernels/cuda/tensor_attention.h"

namespace ofsdp::cuda {
namespace {

constexpr int64_t kWidest = 256;  // head that the kernels take

// Where the operands of a call begin; `first` is the place of Q.
ops::AttentionInputs inputs_of(const Problem& p, size_t first, size_t lengths, int64_t past) {
  const auto at = [&](size_t i) { return p.has_in(i) ? p.in(i) : TensorDesc{}; };
  return {at(first), at(first + 1), at(first + 2), at(first + 3), p.has_in(lengths), past};
}

AttentionExtent operands_extent(const Problem& p, const ops::AttentionInputs& in) {
  return extent_of(ops::attention_shape(in, p.attributes), in.q.dtype);
}

bool accepts_operands(const Problem& p, const ops::AttentionInputs& in) {
  const DType dtype = in.q.dtype;
  const AttentionExtent e = operands_extent(p, in);
  const bool mask = !in.mask.present() || in.mask.dtype == dtype || in.mask.dtype == DType::kBool;
  return p.all_plain() && is_float(dtype) && in.k.dtype == dtype && in.v.dtype == dtype && mask &&
         e.width <= kWidest && e.v_width <= kWidest && e.keys > 0 && e.width > 0 && e.v_width > 0;
}

bool accepts(const Problem& p) {
  for (const size_t cached : {size_t{4}, size_t{5}}) {
    if (p.has_in(cached)) return false;
  }
  for (size_t i = 1; i < p.outputs.size(); ++i) {
    if (p.has_out(i)) return false;
  }
  return accepts_operands(p, inputs_of(p, 0, 6, 0));
}

bool accepts_narrow(const Problem& p) {
  return accepts(p) && takes_tensor_attention(operands_extent(p, inputs_of(p, 0, 6, 0)));
}

// (q, k, v, mask, lengths) -> y, statistics
bool accepts_keeping(const Problem& p) {
  return p.has_out(1) && accepts_operands(p, inputs_of(p, 0, 4, 0));
}

bool accepts_narrow_keeping(const Problem& p) {
  return accepts_keeping(p) && takes_tensor_attention(operands_extent(p, inputs_of(p, 0, 4, 0)));
}

// kLengths: which input. Attention has no statistics.
template <auto kLaunch, size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(ofsdp_device&, const Problem& p) {
  const AttentionExtent e = operands_extent(p, inputs_of(p, 0, kLengths, 0));
  const bool mask = p.has_in(3), lengths = p.has_in(kLengths);
  return make_cuda_kernel([=](cudaStream_t stream, const ofsdp_launch& l) {
    AttentionExtent call = e;
    call.mask = mask ? l.inputs[3] : nullptr;
    call.lengths = lengths ? static_cast<const int64_t*>(l.inputs[kLengths]) : nullptr;
    call.fault = fault_of(l);
    float* statistics = kKeeps ? static_cast<float*>(l.outputs[1]) : nullptr;
    return kLaunch(call, l.inputs[0], l.inputs[1], l.inputs[2], l.outputs[0], statistics, stream);
  });
}

// (dy, q, k, v, mask, lengths, y, statistics) -> dq, dk, dv, dmask; keys hold the past already.
ops::AttentionInputs gradient_inputs(const Problem& p) {
  return inputs_of(p, 1, 5, p.attributes.i("past_length", 0));
}

bool accepts_grad(const Problem& p) {
  const bool kept = !p.has_in(6) || p.in(6).dtype == p.in(0).dtype;
  return p.in(0).dtype == p.in(1).dtype && kept && p.has_in(6) == p.has_in(7) && p.has_out(0) &&
         p.has_out(1) && p.has_out(2) && accepts_operands(p, gradient_inputs(p));
}

bool accepts_narrow_grad(const Problem& p) {
  return accepts_grad(p) && takes_tensor_attention(operands_extent(p, gradient_inputs(p)));
}

template <auto kLaunch, auto kScratch>
std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  const AttentionExtent e = operands_extent(p, gradient_inputs(p));
  const bool mask = p.has_in(4), lengths = p.has_in(5), dmask = p.has_out(3), kept = p.has_in(7);
  const HeadStrides y = in_elements(
      ops::kept_strides(ops::attention_shape(gradient_inputs(p), p.attributes), p.attributes));
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        AttentionExtent call = e;
        call.mask = mask ? l.inputs[4] : nullptr;
        call.lengths = lengths ? static_cast<const int64_t*>(l.inputs[5]) : nullptr;
        call.fault = fault_of(l);
        AttentionGradient g;
        g.dy = l.inputs[0];
        g.q = l.inputs[1];
        g.k = l.inputs[2];
        g.v = l.inputs[3];
        g.dq = l.outputs[0];
        g.dk = l.outputs[1];
        g.dv = l.outputs[2];
        g.dmask = dmask ? l.outputs[3] : nullptr;
        g.scratch = l.workspace;
        g.y = kept ? l.inputs[6] : nullptr;
        g.y_strides = y;
        g.statistics = kept ? static_cast<const float*>(l.inputs[7]) : nullptr;
        return kLaunch(call, g, stream);
      },
      kScratch(e, kept));
}

}  // namespace

void add_attention(CudaImplementations& list) {
  constexpr auto kKeeping = "ofsdp.AttentionWithStatistics", kGrad = "ofsdp.AttentionGrad";
  list.push_back({"Attention", "tensor cores", accepts_narrow, create<tensor_attention, 6, false>});
  list.push_back({"Attention", "own", accepts, create<attention, 6, false>});
  list.push_back(
      {kKeeping, "tensor cores", accepts_narrow_keeping, create<tensor_attention, 4, true>});
  list.push_back({kKeeping, "own", accepts_keeping, create<attention, 4, true>});
  list.push_back({kGrad, "tensor cores", accepts_narrow_grad,
                  create_grad<tensor_attention_grad, tensor_attention_grad_scratch>});
  list.push_back({kGrad, "own", accepts_grad, create_grad<attention_grad, attention_grad_scratch>});
}

}  // namespace ofsdp::cuda
