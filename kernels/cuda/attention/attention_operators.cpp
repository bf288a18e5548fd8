// Attention and its gradient without cuDNN: on tensor cores (kernels/cuda/attention/tensor_attention.h), else
// on CUDA cores (kernels/cuda/attention/attention.h). Cached keys and the outputs of scores are not here.
// ofsdp.AttentionWithStatistics keeps what its gradient reads then instead of finding it.
#include "kernels/cuda/attention/attention_operands.h"
#include "kernels/cuda/attention/tensor_attention.h"
#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts_narrow(const Problem& p) {
  return accepts_attention(p) && takes_tensor_attention(forward_extent(p, kAttentionLengths));
}

bool accepts_narrow_keeping(const Problem& p) {
  return accepts_keeping_attention(p) && takes_tensor_attention(forward_extent(p, kKeepingLengths));
}

// kLengths: which input. Attention has no statistics.
template <auto kLaunch, size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(ofsdp_device&, const Problem& p) {
  const AttentionExtent e = forward_extent(p, kLengths);
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

bool accepts_narrow_grad(const Problem& p) {
  return accepts_attention_grad(p) && takes_tensor_attention(gradient_extent(p));
}

template <auto kLaunch, auto kScratch>
std::unique_ptr<CudaKernel> create_grad(ofsdp_device&, const Problem& p) {
  const AttentionExtent e = gradient_extent(p);
  const bool mask = p.has_in(4), lengths = p.has_in(5), dmask = p.has_out(3), kept = p.has_in(7);
  const HeadStrides y = kept_strides(p);
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
  list.push_back({"Attention", "tensor cores", accepts_narrow,
                  create<tensor_attention, kAttentionLengths, false>});
  list.push_back(
      {"Attention", "own", accepts_attention, create<attention, kAttentionLengths, false>});
  list.push_back({kKeeping, "tensor cores", accepts_narrow_keeping,
                  create<tensor_attention, kKeepingLengths, true>});
  list.push_back(
      {kKeeping, "own", accepts_keeping_attention, create<attention, kKeepingLengths, true>});
  list.push_back({kGrad, "tensor cores", accepts_narrow_grad,
                  create_grad<tensor_attention_grad, tensor_attention_grad_scratch>});
  list.push_back(
      {kGrad, "own", accepts_attention_grad, create_grad<attention_grad, attention_grad_scratch>});
}

}  // namespace ofsdp::kernels::cuda
