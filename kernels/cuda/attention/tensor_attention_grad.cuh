// Shared by tensor_attention_queries.cu and tensor_attention_keys.cu: the gradient, in three
// kernels: delta of each query (where the forward pass kept nothing, its statistics too), then dq
// by queries, then dk and dv by keys. A block has 64 rows of one side, 16 a warp, and walks tiles
// of the other side; what follows of a tile is loaded as soon as no warp reads it. The four tiles
// are at most 48 KiB. A score's probability is p = 2^(score - log_sum), log_sum the statistics in
// base 2, its slope ds = p (dp - delta).
#pragma once

#include "kernels/cuda/attention/tensor_attention.cuh"

namespace ofsdp::kernels::cuda {

inline constexpr int kGradRows = 64;
template <int W>
inline constexpr int kGradStep = W <= 64 ? 64 : 32;  // rows of a tile that is walked

template <int W>
using Sums = float[1][W / 8][4];

// Writes dq and, unless they were kept, the two numbers of each query into the scratch.
cudaError_t tensor_query_gradient(const AttentionExtent& e, const AttentionGradient& g,
                                  cudaStream_t stream);

template <typename T>
TensorOperands<T> gradient_operands(const AttentionExtent& e, const AttentionGradient& g) {
  return {gradient_pointers<T>(e, g), whole_chunks(e, g.q, g.k, g.v, g.dy, g.dq, g.dk, g.dv)};
}

// From a score and dp to p and ds, in their places. A key that is not seen has none, whatever dp
// is.
__device__ inline void to_slope(float& score, float& dp, float log_sum, float delta) {
  const bool none = score == -INFINITY;
  score = none ? 0.0f : exp2f(score - log_sum);
  dp = none ? 0.0f : score * (dp - delta);
}

}  // namespace ofsdp::kernels::cuda
