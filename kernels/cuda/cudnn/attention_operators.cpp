// Attention of 16 bits by cuDNN, forwards and backwards, where no scores are masked but by causality,
// capped or windowed. Masks stay with our own kernels: of a row that a mask leaves without keys ours
// give zeros, and what cuDNN gives is not written down.
#include <array>

#include "kernels/cuda/attention/attention_operands.h"
#include "kernels/cuda/cudnn/operators.h"
#include "kernels/cuda/cudnn/plan.h"

namespace ofsdp::kernels::cuda {
namespace {

// A causal query sees the keys up to its own position, or of as many as the keys are ahead.
bool takes(const AttentionExtent& e, bool lengths) {
  const bool causal = !e.causal || e.offset == 0 || e.offset == e.keys - e.queries;
  return dtype_size(e.dtype) == 2 && !lengths && e.mask_kind == MaskKind::kNone && e.softcap == 0 &&
         e.left < 0 && e.right < 0 && e.offset >= 0 && causal;
}

bool accepts(const Problem& p) {
  return accepts_attention(p) &&
         takes(forward_extent(p, kAttentionLengths), p.has_in(kAttentionLengths));
}

bool accepts_keeping(const Problem& p) {
  return accepts_keeping_attention(p) &&
         takes(forward_extent(p, kKeepingLengths), p.has_in(kKeepingLengths));
}

bool accepts_grad(const Problem& p) {
  return accepts_attention_grad(p) && p.has_in(7) && !p.has_out(3) &&
         takes(gradient_extent(p), p.has_in(5));
}

template <size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(ofsdp_device& device, const Problem& p) {
  const std::shared_ptr<CudnnPlan> plan =
      plan_attention(cudnn_target(device), forward_extent(p, kLengths), kKeeps);
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        std::array<void*, 5> operands{l.inputs[0], l.inputs[1], l.inputs[2], l.outputs[0],
                                      kKeeps ? l.outputs[1] : nullptr};
        return plan->run(stream, std::span<void*>(operands.data(), kKeeps ? 5 : 4), l.workspace);
      },
      plan->workspace_bytes());
}

std::unique_ptr<CudaKernel> create_grad(ofsdp_device& device, const Problem& p) {
  const std::shared_ptr<CudnnPlan> plan =
      plan_attention_grad(cudnn_target(device), gradient_extent(p), kept_strides(p));
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        std::array<void*, 9> operands{l.inputs[1],  l.inputs[2],  l.inputs[3],
                                      l.inputs[6],  l.inputs[0],  l.inputs[7],
                                      l.outputs[0], l.outputs[1], l.outputs[2]};
        return plan->run(stream, operands, l.workspace);
      },
      plan->workspace_bytes());
}

}  // namespace

void add_cudnn_attention(CudaImplementations& list) {
  list.push_back({"Attention", "cudnn", accepts, create<kAttentionLengths, false>});
  list.push_back(
      {"ofsdp.AttentionWithStatistics", "cudnn", accepts_keeping, create<kKeepingLengths, true>});
  list.push_back({"ofsdp.AttentionGrad", "cudnn", accepts_grad, create_grad});
}

}  // namespace ofsdp::kernels::cuda
