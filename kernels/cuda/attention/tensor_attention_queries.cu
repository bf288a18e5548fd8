// The gradient's dq, and the two numbers of each query where none were kept. Both walk the keys
// of a block of queries.
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/tensor_attention_grad.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// Walks the keys of a block of queries: f(first key, scores, dp, k) with masked scores in base 2
// and dp = dY V^T.
template <typename T, int W, typename F>
__device__ inline void for_key_tiles(const AttentionExtent& e, const TensorOperands<T>& o,
                                     const QueryBlock& b, F f) {
  constexpr int kKeys = kGradStep<W>;
  __shared__ Tile<kGradRows, W> q, dy;
  __shared__ Tile<kKeys, W> k, v;
  const Place p;
  const int row = p.warp * 16, query = b.first + row + p.g;
  const Span spans[1][2] = {{span_of(e, b.head.b, query), span_of(e, b.head.b, query + 8)}};
  const RowsOf<T> keys = o.keys(e, b.head), values = o.values(e, b.head);
  load_tile<kAttentionThreads>(q, o.queries(e, b.head), b.first);
  load_tile<kAttentionThreads>(dy, o.slopes(e, b.head), b.first);
  if (b.low < b.high) load_tile<kAttentionThreads>(k, keys, b.low);
  if (b.low < b.high) load_tile<kAttentionThreads>(v, values, b.low);
  for (int first = b.low; first < b.high; first += kKeys) {
    const bool more = first + kKeys < b.high;
    wait_for_copies();
    __syncthreads();
    Sums<kKeys> s = {}, dp = {};
    multiply_rows<T, 1, kKeys>(dp, dy, row, v);
    __syncthreads();  // no warp reads v
    if (more) load_tile<kAttentionThreads>(v, values, first + kKeys);
    multiply_rows<T, 1, kKeys>(s, q, row, k);
    const bool all = sees_all(e, b.head.b, b.first, kGradRows, first, kKeys);
    mask_scores<T>(s, e, b.head, query, first + 2 * p.t, spans, all);
    f(first, s[0], dp[0], k);
    __syncthreads();  // no warp reads k
    if (more) load_tile<kAttentionThreads>(k, keys, first + kKeys);
  }
  wait_for_copies();
}

template <typename T, int W>
__global__ void __launch_bounds__(kAttentionThreads)
    stats_kernel(AttentionExtent e, TensorOperands<T> o) {
  constexpr int N = kGradStep<W> / 8;
  const Place p;
  const QueryBlock b = query_block<kGradRows, kGradStep<W>>(e);
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, delta[2] = {};
  for_key_tiles<T, W>(e, o, b, [&](int, auto& s, auto& dp, auto&) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int n = 0; n < N; ++n) top = Largest{}(Largest{}(top, s[n][2 * r]), s[n][2 * r + 1]);
      top = row_fold(top, Largest{});
      const float base = top == -INFINITY ? 0.0f : top;
      const float shrink = exp2f(max[r] - base);
      max[r] = top;
      sum[r] *= shrink;
      delta[r] *= shrink;
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          const float weight = exp2f(s[n][i] - base);
          sum[r] += weight;
          if (weight != 0) delta[r] += weight * dp[n][i];
        }
      }
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = b.first + p.warp * 16 + p.g + 8 * r;
    const float whole = row_fold(sum[r], Add{}), slope = row_fold(delta[r], Add{});
    if (p.t != 0 || query >= e.queries) continue;
    const int64_t at = stats_row(e, b.head, query);
    o.statistics_found[at] = natural_log_sum(max[r], whole);
    o.delta[at] = whole == 0 ? 0.0f : slope / whole;
  }
}

template <typename T, int W>
__global__ void __launch_bounds__(kAttentionThreads)
    queries_kernel(AttentionExtent e, TensorOperands<T> o) {
  constexpr int N = kGradStep<W> / 8;
  const Place p;
  const QueryBlock b = query_block<kGradRows, kGradStep<W>>(e);
  const int row = b.first + p.warp * 16;
  int64_t at[2];
  float log_sum[2] = {}, delta[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    at[r] = row + p.g + 8 * r < e.queries ? stats_row(e, b.head, row + p.g + 8 * r) : -1;
    if (at[r] < 0) continue;
    log_sum[r] = o.statistics[at[r]] * kLog2E;
    delta[r] = o.delta[at[r]];
  }
  Sums<W> dq = {};
  for_key_tiles<T, W>(e, o, b, [&](int first, auto& s, auto& dp, auto& k) {
    float ds[1][N][4];
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to_slope(s[n][i], dp[n][i], log_sum[i / 2], delta[i / 2]);
        ds[0][n][i] = dp[n][i];
        const int key = first + 8 * n + 2 * p.t + i % 2;
        if (o.dmask != nullptr && at[i / 2] >= 0 && key < e.mask_keys) {
          o.dmask[at[i / 2] * e.mask_keys + key] = Stored<T>::from(dp[n][i]);
        }
      }
    }
    multiply_sums<T>(dq, ds, k);
  });
  const float factor[2] = {e.scale, e.scale};
  store_sums(o.dq + b.head.b * e.q.batch + b.head.h * e.q.head + row * e.q.row, e.q.row,
             static_cast<int>(e.queries) - row, static_cast<int>(e.width), o.packs, dq[0], factor);
}

}  // namespace

cudaError_t tensor_query_gradient(const AttentionExtent& e, const AttentionGradient& g,
                                  cudaStream_t stream) {
  return with_tensor_width(e, [&]<typename T, int W>() {
    constexpr int kThreads = kAttentionThreads;
    const TensorOperands<T> o = gradient_operands<T>(e, g);
    const int64_t blocks = e.batch * e.heads * blocks_for(e.queries, kGradRows);
    OFSDP_CUDA_TRY(g.statistics != nullptr
                       ? attention_delta(e, g, o.delta, stream)
                       : launch_blocks(stream, blocks, kThreads, stats_kernel<T, W>, e, o));
    return launch_blocks(stream, blocks, kThreads, queries_kernel<T, W>, e, o);
  });
}

}  // namespace ofsdp::kernels::cuda
