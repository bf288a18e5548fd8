// Attention of 16 bits by cuDNN, forwards and backwards, where no scores are masked but by
// causality, capped or windowed. Masks stay with our own kernels: of a row that a mask leaves
// without keys ours give zeros, and what cuDNN gives is not written down.
#include <array>

#include "kernels/cuda/attention/attention_operands.h"
#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {
namespace {

// Addresses of operands are multiples of this (plan.h).
constexpr size_t kAddress = 16;

// A causal query sees the keys up to its own position, or of as many as the keys are ahead.
Acceptance takes(const AttentionExtent& e, const HeadPlaces& places, bool lengths) {
  const bool causal = !e.causal || e.offset == 0 || e.offset == e.keys - e.queries;
  return accept(
      {{dtype_size(e.dtype) == 2, "cuDNN takes 16 bits only"},
       {!lengths && e.mask_kind == MaskKind::kNone, "scores are masked other than by causality"},
       {e.softcap == 0, "scores are capped"},
       {(places.q | places.k | places.v) % kAddress == 0, "heads begin between 16 bytes"},
       {e.left < 0 && e.right < 0 && e.offset >= 0 && causal, "keys are windowed"}});
}

Acceptance accepts(const Problem& p) {
  const Acceptance accepted = accepts_attention(p);
  return accepted ? takes(forward_extent(p, kAttentionLengths),
                          forward_places(p, kAttentionLengths), p.has_in(kAttentionLengths))
                  : accepted;
}

Acceptance accepts_keeping(const Problem& p) {
  const Acceptance accepted = accepts_keeping_attention(p);
  return accepted ? takes(forward_extent(p, kKeepingLengths), forward_places(p, kKeepingLengths),
                          p.has_in(kKeepingLengths))
                  : accepted;
}

Acceptance accepts_grad(const Problem& p) {
  const Acceptance accepted = accepts_attention_grad(p);
  if (!accepted) return accepted;
  if (!p.has_in(7) || p.has_out(3)) {
    return Acceptance::refuse("statistics are absent, or the mask's gradient is wanted");
  }
  return takes(gradient_extent(p), gradient_places(p), p.has_in(5));
}

template <size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
  const std::shared_ptr<CudnnPlan> plan =
      plan_attention(cudnn_target(device), forward_extent(p, kLengths), kKeeps);
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [plan, places = forward_places(p, kLengths)](cudaStream_t stream, const Launch& l) {
        const auto [q, k, v] = places.of(l.in(0), l.in(1), l.in(2));
        std::array<void*, 5> operands{q, k, v, l.out(0), kKeeps ? l.out(1) : nullptr};
        return plan->run(stream, std::span<void*>(operands.data(), kKeeps ? 5 : 4), l.workspace);
      },
      plan->workspace_bytes());
}

std::unique_ptr<CudaKernel> create_grad(DeviceState& device, const Problem& p) {
  const std::shared_ptr<CudnnPlan> plan =
      plan_attention_grad(cudnn_target(device), gradient_extent(p), kept_strides(p));
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [plan, places = gradient_places(p)](cudaStream_t stream, const Launch& l) {
        const auto [q, k, v] = places.of(l.in(1), l.in(2), l.in(3));
        const auto [dq, dk, dv] = places.of(l.out(0), l.out(1), l.out(2));
        std::array<void*, 9> operands{q, k, v, l.in(6), l.in(0), l.in(7), dq, dk, dv};
        return plan->run(stream, operands, l.workspace);
      },
      plan->workspace_bytes());
}

}  // namespace

void add_cudnn_attention(CudaImplementations& list) {
  list.insert(list.end(), {{"Attention", "cudnn", accepts, create<kAttentionLengths, false>},
                           {"ofsdp.AttentionWithStatistics", "cudnn", accepts_keeping,
                            create<kKeepingLengths, true>},
                           {"ofsdp.AttentionGrad", "cudnn", accepts_grad, create_grad}});
}

}  // namespace ofsdp::kernels::cuda
