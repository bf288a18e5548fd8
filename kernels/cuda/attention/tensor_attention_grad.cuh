// What tensor_attention_queries.cu and tensor_attention_keys.cu share: the gradient, in three kernels: delta of each query
// (where the forward pass kept nothing, its statistics too), then dq by queries, then dk and dv by keys. A block has 64 rows of
// one side, 16 a warp, and walks tiles of the other side; what follows of a tile is loaded as soon as no warp reads it. The four
// tiles are at most 48 KiB. A score's probability is p = 2^(score - log_sum), log_sum the statistics in base 2, its slope
// ds = p (dp - delta).
#pragma once

#include "kernels/cuda/attention/tensor_attention.cuh"

namespace ofsdp::kernels::cuda {

inline constexpr int kGradRows = 64;
template <int W>
inline constexpr int kGradStep = W <= 64 ? 64 : 32;  // rows of a tile that is walked

template <int W>
using Sums = float[1][W / 8][4];

// What is not there of the two numbers of each query into the scratch, and dq.
cudaError_t tensor_query_gradient(const AttentionExtent& e, const AttentionGradient& g,
                                  cudaStream_t stream);

template <typename T>
TensorOperands<T> gradient_operands(const AttentionExtent& e, const AttentionGradient& g) {
  TensorOperands<T> o{};
  o.q = static_cast<const T*>(g.q);
  o.k = static_cast<const T*>(g.k);
  o.v = static_cast<const T*>(g.v);
  o.dy = static_cast<const T*>(g.dy);
  o.dq = static_cast<T*>(g.dq);
  o.dk = static_cast<T*>(g.dk);
  o.dv = static_cast<T*>(g.dv);
  o.dmask = static_cast<T*>(g.dmask);
  o.delta = static_cast<float*>(g.scratch);
  if (g.statistics == nullptr) o.statistics_found = o.delta + e.batch * e.heads * e.queries;
  o.statistics = g.statistics != nullptr ? g.statistics : o.statistics_found;
  o.packs = whole_chunks(e, g.q, g.k, g.v, g.dy, g.dq, g.dk, g.dv);
  return o;
}

// From a score and dp to p and ds, in their places. A key that is not seen has none, whatever dp is.
__device__ inline void to_slope(float& score, float& dp, float log_sum, float delta) {
  const bool none = score == -INFINITY;
  score = none ? 0.0f : exp2f(score - log_sum);
  dp = none ? 0.0f : score * (dp - delta);
}

}  // namespace ofsdp::kernels::cuda
