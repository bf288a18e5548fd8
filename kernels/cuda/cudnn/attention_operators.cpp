// 16-bit attention by cuDNN, forward and backward. Masks, lengths, windows and softcap stay with
// our kernels: rows without visible keys are 0 there, undocumented in cuDNN.
#include <array>

#include "kernels/cuda/attention/attention_operands.h"
#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {
namespace {

// Required operand alignment (plan.h).
constexpr size_t kAddress = 16;

// cuDNN supports causal masks aligned top left (offset 0) or bottom right (offset = keys -
// queries).
Acceptance takes(const AttentionParams& e, const HeadOffsets& places, bool lengths) {
  const bool causal = !e.causal || e.offset == 0 || e.offset == e.keys - e.queries;
  return accept(
      {{dtype_size(e.dtype) == 2, "cuDNN takes 16 bits only"},
       {!lengths && e.mask_kind == MaskKind::kNone, "scores are masked other than by causality"},
       {e.softcap == 0, "scores are capped"},
       {(places.q | places.k | places.v) % kAddress == 0, "heads begin between 16 bytes"},
       {e.left < 0 && e.right < 0 && e.offset >= 0 && causal, "keys are windowed"}});
}

template <auto kAccepts, size_t kLengths>
Acceptance accepts(const Problem& p) {
  const Acceptance accepted = kAccepts(p);
  return accepted
             ? takes(forward_params(p, kLengths), forward_offsets(p, kLengths), p.has_in(kLengths))
             : accepted;
}

Acceptance accepts_grad(const Problem& p) {
  const Acceptance accepted = accepts_attention_grad(p);
  if (!accepted) return accepted;
  if (!p.has_in(7) || p.has_out(3)) {
    return Acceptance::refuse("statistics are absent, or the mask's gradient is wanted");
  }
  return takes(gradient_params(p), gradient_offsets(p), p.has_in(5));
}

template <size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
  const std::shared_ptr<CudnnPlan> plan =
      plan_attention(cudnn_target(device), forward_params(p, kLengths), kKeeps);
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [plan, places = forward_offsets(p, kLengths)](cudaStream_t stream, const Launch& l) {
        const auto [q, k, v] = places.of(l.in(0), l.in(1), l.in(2));
        std::array<void*, 5> operands{q, k, v, l.out(0), kKeeps ? l.out(1) : nullptr};
        return plan->run(stream, std::span<void*>(operands.data(), kKeeps ? 5 : 4), l.workspace);
      },
      plan->workspace_bytes());
}

std::unique_ptr<CudaKernel> create_grad(DeviceState& device, const Problem& p) {
  const std::shared_ptr<CudnnPlan> plan =
      plan_attention_grad(cudnn_target(device), gradient_params(p), kept_strides(p));
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [plan, places = gradient_offsets(p)](cudaStream_t stream, const Launch& l) {
        const auto [q, k, v] = places.of(l.in(1), l.in(2), l.in(3));
        const auto [dq, dk, dv] = places.of(l.out(0), l.out(1), l.out(2));
        std::array<void*, 9> operands{q, k, v, l.in(6), l.in(0), l.in(7), dq, dk, dv};
        return plan->run(stream, operands, l.workspace);
      },
      plan->workspace_bytes());
}

}  // namespace

void add_cudnn_attention(CudaImplementations& list) {
  list.insert(list.end(), {{"Attention", "cudnn", accepts<accepts_attention, kAttentionLengths>,
                            create<kAttentionLengths, false>},
                           {"ofsdp.AttentionWithStatistics", "cudnn",
                            accepts<accepts_attention_with_statistics, kStatisticsLengths>,
                            create<kStatisticsLengths, true>},
                           {"ofsdp.AttentionGrad", "cudnn", accepts_grad, create_grad}});
}

}  // namespace ofsdp::kernels::cuda
