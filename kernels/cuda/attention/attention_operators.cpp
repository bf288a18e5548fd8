// Attention, the gradient and rotary embeddings without cuDNN: on tensor cores if possible,
// otherwise on CUDA cores (kernels/cuda/attention/attention.h).
#include <algorithm>

#include "kernels/cuda/attention/attention_operands.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"

namespace ofsdp::kernels::cuda {
namespace {

using ops::kAttentionLengths;
using ops::kStatisticsLengths;

// Accepts the problems that kAccepts takes and tensor cores support.
template <auto kAccepts, auto kExtent>
Acceptance accepts_tensor_cores(const Problem& p) {
  const Acceptance accepted = kAccepts(p);
  return accepted ? accept_if(takes_tensor_attention(kExtent(p)),
                              "tensor cores take 16 bits, heads up to 128 wide and no softcap")
                  : accepted;
}

// kLengths: input index. kKeeps: the operator also returns statistics.
template <auto kLaunch, size_t kLengths, bool kKeeps>
std::unique_ptr<CudaKernel> create(DeviceState&, const Problem& p) {
  AttentionParams e = forward_params(p, kLengths);
  const HeadOffsets places = forward_offsets(p, kLengths);
  return make_cuda_kernel([e, places](cudaStream_t stream, const Launch& l) mutable {
    e.mask = l.in(3);
    e.lengths = l.in<int64_t>(kLengths);
    e.fault = l.fault();
    float* statistics = kKeeps ? l.out<float>(1) : nullptr;
    const auto [q, k, v] = places.of(l.in(0), l.in(1), l.in(2));
    return kLaunch(e, q, k, v, l.out(0), statistics, stream);
  });
}

template <auto kLaunch>
std::unique_ptr<CudaKernel> create_grad(DeviceState&, const Problem& p) {
  AttentionParams e = gradient_params(p);
  return make_cuda_kernel(
      [e, places = gradient_offsets(p), y = kept_strides(p)](cudaStream_t stream,
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
      attention_grad_scratch(e, p.has_in(7)));
}

// --- RotaryEmbedding ---

// Input indices.
struct RotaryInputs {
  size_t cos, sin, positions;
};

Acceptance accepts_rotary(const Problem& p, const RotaryInputs& at) {
  const DType dtype = p.in(0).dtype;
  const bool positions = !p.has_in(at.positions) || p.in(at.positions).dtype == DType::kInt64;
  return accept({plain(p), floats(dtype),
                 alike(p.in(at.cos).dtype == dtype && p.in(at.sin).dtype == dtype && positions)});
}

// Same rules as extent() in kernels/ops/attention/rotary_embedding.cpp.
RotaryParams rotary_params(const Problem& p, const RotaryInputs& at) {
  const Shape &x = p.in(0).shape, &cos = p.in(at.cos).shape;
  RotaryParams e;
  e.dtype = p.in(0).dtype;
  e.packed = x.rank() == 3;
  e.batch = x[0];
  e.dim = p.attributes.i("rotary_embedding_dim", 0);
  e.heads = e.packed ? p.attributes.i("num_heads", 0) : x[1];
  if (e.packed && e.heads == 0 && e.dim == 0) {
    e.heads = x[2] / std::max<int64_t>(2 * cos[cos.rank() - 1], 1);
  }
  e.steps = e.packed ? x[1] : x[2];
  e.width = e.packed ? (e.heads == 0 ? 0 : x[2] / e.heads) : x[3];
  if (e.dim == 0) e.dim = e.width;
  e.interleaved = p.attributes.i("interleaved", 0) != 0;
  e.cache_rows = cos.numel(0, cos.rank() - 1);
  if (p.has_in(at.positions)) e.count = p.in(at.positions).numel();
  return e;
}

CudaImplementation rotary(const char* op, RotaryInputs at) {
  return {op, "own", [at](const Problem& p) { return accepts_rotary(p, at); },
          [at](DeviceState&, const Problem& p) {
            return make_cuda_kernel(
                [e = rotary_params(p, at), at](cudaStream_t stream, const Launch& l) mutable {
                  e.positions = l.in<int64_t>(at.positions);
                  e.fault = l.fault();
                  return rotate(e, l.in(0), l.in(at.cos), l.in(at.sin), l.out(0), stream);
                });
          }};
}

}  // namespace

void add_attention(CudaImplementations& list) {
  constexpr auto kKeeping = "ofsdp.AttentionWithStatistics", kGrad = "ofsdp.AttentionGrad";
  constexpr auto kPlain = [](const Problem& p) { return forward_params(p, kAttentionLengths); };
  constexpr auto kKept = [](const Problem& p) { return forward_params(p, kStatisticsLengths); };
  list.insert(
      list.end(),
      {{"Attention", ops::kTensorCores, accepts_tensor_cores<accepts_attention, kPlain>,
        create<tensor_attention, kAttentionLengths, false>},
       {"Attention", ops::kCudaCores, accepts_attention,
        create<attention, kAttentionLengths, false>},
       {kKeeping, ops::kTensorCores, accepts_tensor_cores<accepts_attention_with_statistics, kKept>,
        create<tensor_attention, kStatisticsLengths, true>},
       {kKeeping, ops::kCudaCores, accepts_attention_with_statistics,
        create<attention, kStatisticsLengths, true>},
       {kGrad, ops::kTensorCores, accepts_tensor_cores<accepts_attention_grad, gradient_params>,
        create_grad<tensor_attention_grad>},
       {kGrad, ops::kCudaCores, accepts_attention_grad, create_grad<attention_grad>}});
}

void add_rotary(CudaImplementations& list) {
  list.push_back(rotary("RotaryEmbedding", {1, 2, 3}));
  list.push_back(rotary("com.microsoft.RotaryEmbedding", {2, 3, 1}));
}

}  // namespace ofsdp::kernels::cuda
