// Attention and its gradient without cuDNN: on tensor cores
// (kernels/cuda/attention/tensor_attention.h), else on CUDA cores
// (kernels/cuda/attention/attention.h). Cached keys and the outputs of scores are not here.
// ofsdp.AttentionWithStatistics keeps what its gradient reads then instead of finding it.
#include "kernels/cuda/attention/attention_operands.h"
#include "kernels/cuda/attention/tensor_attention.h"
#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {
namespace {

// The problems of `accepts` whose extent goes to tensor cores.
template <auto kAccepts, auto kExtent>
Acceptance accepts_narrow(const Problem& p) {
  const Acceptance accepted = kAccepts(p);
  return accepted ? accept_if(takes_tensor_attention(kExtent(p)),
                              "tensor cores take 16 bits, heads up to 128 wide and no softcap")
                  : accepted;
}

// kLengths: which input. Attention has no statistics.
template <auto kLaunch, size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(DeviceState&, const Problem& p) {
  AttentionExtent e = forward_extent(p, kLengths);
  const HeadPlaces places = forward_places(p, kLengths);
  return make_cuda_kernel([e, places](cudaStream_t stream, const Launch& l) mutable {
    e.mask = l.in(3);
    e.lengths = l.in<int64_t>(kLengths);
    e.fault = l.fault();
    float* statistics = kKeeps ? l.out<float>(1) : nullptr;
    const auto [q, k, v] = places.of(l.in(0), l.in(1), l.in(2));
    return kLaunch(e, q, k, v, l.out(0), statistics, stream);
  });
}

template <auto kLaunch, auto kScratch>
std::unique_ptr<CudaKernel> create_grad(DeviceState&, const Problem& p) {
  AttentionExtent e = gradient_extent(p);
  const bool kept = p.has_in(7);
  return make_cuda_kernel(
      [e, places = gradient_places(p), y = kept_strides(p)](cudaStream_t stream,
                                                            const Launch& l) mutable {
        e.mask = l.in(4);
        e.lengths = l.in<int64_t>(5);
        e.fault = l.fault();
        const auto [q, k, v] = places.of(l.in(1), l.in(2), l.in(3));
        const auto [dq, dk, dv] = places.of(l.out(0), l.out(1), l.out(2));
        return kLaunch(e,
                       {.dy = l.in(0),
                        .q = q,
                        .k = k,
                        .v = v,
                        .dq = dq,
                        .dk = dk,
                        .dv = dv,
                        .dmask = l.out(3),
                        .scratch = l.workspace,
                        .y = l.in(6),
                        .y_strides = y,
                        .statistics = l.in<float>(7)},
                       stream);
      },
      kScratch(e, kept));
}

}  // namespace

void add_attention(CudaImplementations& list) {
  constexpr auto kKeeping = "ofsdp.AttentionWithStatistics", kGrad = "ofsdp.AttentionGrad";
  constexpr auto kPlain = [](const Problem& p) { return forward_extent(p, kAttentionLengths); };
  constexpr auto kKept = [](const Problem& p) { return forward_extent(p, kKeepingLengths); };
  list.insert(
      list.end(),
      {{"Attention", "tensor cores", accepts_narrow<accepts_attention, kPlain>,
        create<tensor_attention, kAttentionLengths, false>},
       {"Attention", "own", accepts_attention, create<attention, kAttentionLengths, false>},
       {kKeeping, "tensor cores", accepts_narrow<accepts_keeping_attention, kKept>,
        create<tensor_attention, kKeepingLengths, true>},
       {kKeeping, "own", accepts_keeping_attention, create<attention, kKeepingLengths, true>},
       {kGrad, "tensor cores", accepts_narrow<accepts_attention_grad, gradient_extent>,
        create_grad<tensor_attention_grad, tensor_attention_grad_scratch>},
       {kGrad, "own", accepts_attention_grad,
        create_grad<attention_grad, attention_grad_scratch>}});
}

}  // namespace ofsdp::kernels::cuda
