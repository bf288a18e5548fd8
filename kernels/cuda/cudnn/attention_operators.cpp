// 16-bit attention by cuDNN, forward and backward. A mask is given to it as lengths of the samples
// or as a bias; samples that it cannot compute so, such as one with a query that sees no key, are
// then computed by our own kernels, over what it wrote.
#include <array>
#include <optional>

#include "kernels/cuda/attention/attention_operands.h"
#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {
namespace {

using ops::MaskUse;

template <MaskUse kUse>
Acceptance takes(const Problem& p, const ops::AttentionInputs& in) {
  const AttentionShape s = ops::attention_shape(in, p.attributes);
  if (ops::mask_use(s, p.attributes) != kUse) return Acceptance::refuse("no such mask");
  return ops::takes_cudnn(s, p.attributes, in.q.dtype);
}

template <auto kAccepts, size_t kLengths, MaskUse kUse>
Acceptance accepts(const Problem& p) {
  const Acceptance accepted = kAccepts(p);
  return accepted ? takes<kUse>(p, ops::forward_inputs(p, kLengths)) : accepted;
}

template <MaskUse kUse>
Acceptance accepts_grad(const Problem& p) {
  const Acceptance accepted = accepts_attention_grad(p);
  if (!accepted) return accepted;
  if (!p.has_in(7)) return Acceptance::refuse("statistics are absent");
  if (p.has_out(3)) return Acceptance::refuse("the mask's gradient is wanted");
  return takes<kUse>(p, ops::gradient_inputs(p));
}

// A problem as our kernels and as cuDNN see it, with what cuDNN gets of the mask in the workspace:
// three vectors of lengths, the bias, and after them the scratch of each call.
class MaskedAttention {
 public:
  MaskedAttention(const Problem& p, const ops::AttentionInputs& in)
      : whole_(operands_params(p, in)) {
    const AttentionShape s = ops::attention_shape(in, p.attributes);
    cudnn_.mask = ops::mask_use(s, p.attributes);
    cudnn_.to_last_key = s.padded;
    const AttentionShape seen =
        cudnn_.mask == MaskUse::kLengths ? ops::with_one_row(s, p.attributes) : s;
    cudnn_.e = extent_of(seen, in.q.dtype);
    fewest_ = ops::fewest_keys(seen);
    if (cudnn_.mask == MaskUse::kBias) cudnn_.bias = mask_bias_shape(cudnn_.e);
  }

  const CudnnAttention& cudnn() const { return cudnn_; }
  const AttentionParams& whole() const { return whole_; }
  bool masked() const { return cudnn_.mask != MaskUse::kNone; }
  bool by_lengths() const { return cudnn_.mask == MaskUse::kLengths; }

  // Bytes before the scratch.
  size_t bytes() const {
    if (!masked()) return 0;
    return 3 * vector_bytes() + (by_lengths() ? 0 : round_up(cudnn_.bias.bytes(whole_.dtype)));
  }
  SampleLengths lengths(void* workspace) const {
    const auto at = [&](size_t i) {
      return reinterpret_cast<int32_t*>(static_cast<std::byte*>(workspace) + i * vector_bytes());
    };
    return {at(0), at(1), at(2)};
  }

  // Launches what finds lengths or bias, and appends them to cuDNN's operands.
  template <typename Operands>
  cudaError_t prepare(void* workspace, const void* mask, const int64_t* given, Fault fault,
                      Operands& operands, cudaStream_t stream) const {
    const SampleLengths to = lengths(workspace);
    AttentionParams e = with(cudnn_.e, mask, given, fault);
    if (by_lengths()) {
      operands.add(to.queries);
      operands.add(to.keys);
      return sample_lengths(e, fewest_, to, stream);
    }
    if (!masked()) return cudaSuccess;
    void* const bias = static_cast<std::byte*>(workspace) + 3 * vector_bytes();
    operands.add(bias);
    return mask_bias(e, bias, to.apart, stream);
  }

  // The samples that our kernels compute, over all that cuDNN wrote of them.
  AttentionParams apart(void* workspace, const void* mask, const int64_t* given) const {
    AttentionParams e = with(whole_, mask, given, {});
    e.wanted = lengths(workspace).apart;
    return e;
  }

 private:
  static AttentionParams with(AttentionParams e, const void* mask, const int64_t* given,
                              Fault fault) {
    e.mask = mask;
    e.lengths = given;
    e.fault = fault;
    return e;
  }
  size_t vector_bytes() const {
    return round_up(static_cast<size_t>(whole_.batch) * sizeof(int32_t));
  }

  AttentionParams whole_;
  CudnnAttention cudnn_;
  int64_t fewest_ = 1;
};

// cuDNN's operands in the order of a plan.
class Operands {
 public:
  void add(void* one) { list_[count_++] = one; }
  std::span<void*> all() { return {list_.data(), count_}; }

 private:
  std::array<void*, 11> list_{};
  size_t count_ = 0;
};

template <auto kOnTensorCores, auto kOnCudaCores, typename... A>
cudaError_t by_ourselves(const AttentionParams& e, A... arguments) {
  return takes_tensor_attention(e) ? kOnTensorCores(e, arguments...)
                                   : kOnCudaCores(e, arguments...);
}

template <size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
  const MaskedAttention m(p, ops::forward_inputs(p, kLengths));
  const std::shared_ptr<CudnnPlan> plan = plan_attention(cudnn_target(device), m.cudnn(), kKeeps);
  if (plan == nullptr) return nullptr;
  return make_cuda_kernel(
      [plan, m, places = forward_offsets(p, kLengths)](cudaStream_t stream, const Launch& l) {
        const auto [q, k, v] = places.of(l.in(0), l.in(1), l.in(2));
        float* const statistics = kKeeps ? l.out<float>(1) : nullptr;
        const void* const mask = l.in(3);
        const auto* const lengths = l.in<int64_t>(kLengths);
        Operands operands;
        for (void* one : {q, k, v, l.out(0)}) operands.add(one);
        if (kKeeps) operands.add(statistics);
        OFSDP_CUDA_TRY(m.prepare(l.workspace, mask, lengths, l.fault(), operands, stream));
        void* const scratch = static_cast<std::byte*>(l.workspace) + m.bytes();
        OFSDP_CUDA_TRY(plan->run(stream, operands.all(), scratch));
        if (!m.masked()) return cudaSuccess;
        return by_ourselves<tensor_attention, attention>(m.apart(l.workspace, mask, lengths), q, k,
                                                         v, l.out(0), statistics, stream);
      },
      m.bytes() + plan->workspace_bytes());
}

std::unique_ptr<CudaKernel> create_grad(DeviceState& device, const Problem& p) {
  const MaskedAttention m(p, ops::gradient_inputs(p));
  const HeadStrides y_strides = kept_strides(p);
  const std::shared_ptr<CudnnPlan> plan =
      plan_attention_grad(cudnn_target(device), m.cudnn(), y_strides);
  if (plan == nullptr) return nullptr;
  const size_t own = m.masked() ? attention_grad_scratch(m.whole(), true) : 0;
  return make_cuda_kernel(
      [plan, m, places = gradient_offsets(p), y_strides](cudaStream_t stream, const Launch& l) {
        const auto [q, k, v] = places.of(l.in(1), l.in(2), l.in(3));
        const auto [dq, dk, dv] = places.of(l.out(0), l.out(1), l.out(2));
        const void* const mask = l.in(4);
        const auto* const lengths = l.in<int64_t>(ops::kGradientLengths);
        Operands operands;
        for (void* one : {q, k, v, l.in(6), l.in(0), l.in(7)}) operands.add(one);
        OFSDP_CUDA_TRY(m.prepare(l.workspace, mask, lengths, l.fault(), operands, stream));
        for (void* one : {dq, dk, dv}) operands.add(one);
        void* const scratch = static_cast<std::byte*>(l.workspace) + m.bytes();
        OFSDP_CUDA_TRY(plan->run(stream, operands.all(), scratch));
        if (!m.masked()) return cudaSuccess;
        if (m.by_lengths()) {
          const int32_t* const keys = m.lengths(l.workspace).keys;
          OFSDP_CUDA_TRY(zero_hidden_keys(m.whole(), keys, dk, dv, stream));
        }
        const AttentionGradient gradient{.dy = l.in(0),
                                         .q = q,
                                         .k = k,
                                         .v = v,
                                         .dq = dq,
                                         .dk = dk,
                                         .dv = dv,
                                         .scratch = scratch,
                                         .y = l.in(6),
                                         .y_strides = y_strides,
                                         .statistics = l.in<float>(7)};
        return by_ourselves<tensor_attention_grad, attention_grad>(
            m.apart(l.workspace, mask, lengths), gradient, stream);
      },
      m.bytes() + std::max(plan->workspace_bytes(), own));
}

template <MaskUse kUse>
void add_rows(CudaImplementations& list) {
  constexpr size_t kGiven = ops::kAttentionLengths, kKept = ops::kStatisticsLengths;
  const char* const name = ops::kCudnnByMask[static_cast<int>(kUse)];
  list.insert(list.end(),
              {{"Attention", name, accepts<accepts_attention, kGiven, kUse>, create<kGiven, false>},
               {"ofsdp.AttentionWithStatistics", name,
                accepts<accepts_attention_with_statistics, kKept, kUse>, create<kKept, true>},
               {"ofsdp.AttentionGrad", name, accepts_grad<kUse>, create_grad}});
}

}  // namespace

void add_cudnn_attention(CudaImplementations& list) {
  add_rows<MaskUse::kNone>(list);
  add_rows<MaskUse::kLengths>(list);
  add_rows<MaskUse::kBias>(list);
}

}  // namespace ofsdp::kernels::cuda
