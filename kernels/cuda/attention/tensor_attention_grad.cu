// Backward pass on tensor cores, three kernels: delta per query (and statistics if none were
// saved), dq by queries, dk and dv by keys. A block owns 64 rows, 16 per warp, and iterates over
// tiles on the other side; each tile is reloaded as soon as no warp reads it. Four tiles take at
// most 48 KiB.
//
// p = 2^(score - log_sum), with log_sum = statistics in base 2; ds = p (dp - delta).
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/tensor_attention.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kGradRows = 64;
template <int W>
constexpr int kGradStep = W <= 64 ? 64 : 32;  // rows per iterated tile

template <int W>
using Sums = float[1][W / 8][4];

template <typename T>
TensorOperands<T> gradient_operands(const AttentionParams& e, const AttentionGradient& g) {
  return {gradient_pointers<T>(e, g), chunk_aligned(e, g.q, g.k, g.v, g.dy, g.dq, g.dk, g.dv)};
}

// Replaces a score by p and dp by ds. Both become 0 for invisible keys, even if dp is NaN.
__device__ inline void to_score_grad(float& score, float& dp, float log_sum, float delta) {
  const bool none = score == -INFINITY;
  score = none ? 0.0f : exp2f(score - log_sum);
  dp = none ? 0.0f : score * (dp - delta);
}

// --- dq and statistics: a block owns 64 queries and iterates over key tiles ---

// Calls f(first key, scores, dp, k tile) per key tile, with masked base-2 scores and dp = dY V^T.
template <typename T, int W, typename F>
__device__ inline void for_key_tiles(const AttentionParams& e, const TensorOperands<T>& o,
                                     const QueryBlock& b, F f) {
  constexpr int kKeys = kGradStep<W>;
  __shared__ Tile<kGradRows, W> q, dy;
  __shared__ Tile<kKeys, W> k, v;
  const Place p;
  const int row = p.warp * 16, query = b.first + row + p.g;
  const Span spans[1][2] = {
      {visible_span(e, b.head.b, query), visible_span(e, b.head.b, query + 8)}};
  const MatrixRows<T> keys = o.keys(e, b.head), values = o.values(e, b.head);
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
    const bool all = all_visible(e, b.head.b, b.first, kGradRows, first, kKeys);
    mask_scores<T>(s, e, b.head, query, first + 2 * p.t, spans, all);
    f(first, s[0], dp[0], k);
    __syncthreads();  // no warp reads k
    if (more) load_tile<kAttentionThreads>(k, keys, first + kKeys);
  }
  wait_for_copies();
}

// Log-sum-exp and delta per query, by online softmax. The four lanes of a row reduce at the end.
template <typename T, int W>
__global__ void __launch_bounds__(kAttentionThreads)
    stats_kernel(AttentionParams e, TensorOperands<T> o) {
  constexpr int N = kGradStep<W> / 8;
  const Place p;
  const QueryBlock b = query_block<kGradRows, kGradStep<W>>(e);
  if (!is_wanted(e, b.head.b)) return;
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, delta[2] = {};
  for_key_tiles<T, W>(e, o, b, [&](int, auto& s, auto& dp, auto&) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int n = 0; n < N; ++n) top = Largest{}(Largest{}(top, s[n][2 * r]), s[n][2 * r + 1]);
      top = row_reduce(top, Largest{});
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
    const float whole = row_reduce(sum[r], Add{}), slope = row_reduce(delta[r], Add{});
    if (p.t != 0 || query >= e.queries) continue;
    const int64_t at = stats_row(e, b.head, query);
    o.statistics_out[at] = natural_log_sum_exp(max[r], whole);
    o.delta[at] = whole == 0 ? 0.0f : slope / whole;
  }
}

// dq += ds K over key tiles, accumulated in registers; stores dmask on the way.
template <typename T, int W>
__global__ void __launch_bounds__(kAttentionThreads)
    queries_kernel(AttentionParams e, TensorOperands<T> o) {
  constexpr int N = kGradStep<W> / 8;
  const Place p;
  const QueryBlock b = query_block<kGradRows, kGradStep<W>>(e);
  if (!is_wanted(e, b.head.b)) return;
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
        to_score_grad(s[n][i], dp[n][i], log_sum[i / 2], delta[i / 2]);
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

// Launches the statistics or delta kernel, then the dq kernel.
cudaError_t tensor_query_gradient(const AttentionParams& e, const AttentionGradient& g,
                                  cudaStream_t stream) {
  return with_tile_width(e, [&]<typename T, int W>() {
    constexpr int kThreads = kAttentionThreads;
    const TensorOperands<T> o = gradient_operands<T>(e, g);
    const int64_t blocks = e.batch * e.heads * blocks_for(e.queries, kGradRows);
    OFSDP_CUDA_TRY(g.statistics != nullptr
                       ? attention_delta(e, g, o.delta, stream)
                       : launch_blocks(stream, blocks, kThreads, stats_kernel<T, W>, e, o));
    return launch_blocks(stream, blocks, kThreads, queries_kernel<T, W>, e, o);
  });
}

// --- dk and dv: a block owns 64 keys. Scores are computed transposed (K Q^T), so that they serve
// as A fragments directly. ---

// The block's keys, and the steps that it iterates over: query heads times query tiles.
template <int kQueries>
struct KeyBlock {
  const AttentionParams& e;
  Head head;  // h: first query head in the group
  int first, tiles, steps;

  __device__ explicit KeyBlock(const AttentionParams& extent) : e(extent) {
    const int64_t key_tiles = (e.keys + kGradRows - 1) / kGradRows, group = e.heads / e.kv_heads;
    const int64_t item = blockIdx.x / key_tiles;
    head = {item / e.kv_heads, item % e.kv_heads * group, item % e.kv_heads};
    first = static_cast<int>(blockIdx.x % key_tiles) * kGradRows;
    tiles = static_cast<int>((e.queries + kQueries - 1) / kQueries);
    steps = static_cast<int>(group) * tiles;
  }
  __device__ Head head_of_step(int step) const { return {head.b, head.h + step / tiles, head.kv}; }
  __device__ int query_of_step(int step) const { return step % tiles * kQueries; }
  // Returns the first step >= `step` with a visible (query, key) pair.
  __device__ int next_visible(int step) const {
    for (; step < steps; ++step) {
      const int query = query_of_step(step);
      const int last = static_cast<int>(min_index(query + kQueries, e.queries)) - 1;
      if (visible_span(e, head.b, last).high > first &&
          visible_span(e, head.b, query).low < first + kGradRows)
        break;
    }
    return step;
  }
};

// Turns raw scores into p and dp into ds. Rows are keys from `key` on, columns queries from `query`
// on.
template <typename T, int N>
__device__ inline void to_score_grads(float (&s)[N][4], float (&dp)[N][4], const AttentionParams& e,
                                      const TensorOperands<T>& o, const Head& head, int key,
                                      int query, bool all) {
  const float scale = e.scale * kLog2E;
  const float bias[2] = {all ? 0.0f : key_bias<T>(e, head, key),
                         all ? 0.0f : key_bias<T>(e, head, key + 8)};
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = query + 8 * n + j;
      const bool there = at < e.queries;
      const Span span = all ? Span{} : visible_span(e, head.b, at);
      const float log_sum = there ? o.statistics[stats_row(e, head, at)] * kLog2E : 0.0f;
      const float delta = there ? o.delta[stats_row(e, head, at)] : 0.0f;
#pragma unroll
      for (int i = j; i < 4; i += 2) {
        float x = s[n][i] * scale;
        if (!all) x = masked_score<T>(e, head, at, key + i / 2 * 8, span, x, bias[i / 2]);
        s[n][i] = x;
        to_score_grad(s[n][i], dp[n][i], log_sum, delta);
      }
    }
  }
}

// As kBlocks in tensor_attention.cu: without the bound, the narrowest heads spill on sm_100.
template <int W>
inline constexpr int kKeyBlocks = W == 32 ? 3 : 0;

// dv += P^T dY and dk += dS^T Q over query heads and query tiles, accumulated in registers.
template <typename T, int W>
__global__ void __launch_bounds__(kAttentionThreads, kKeyBlocks<W>)
    keys_kernel(AttentionParams e, TensorOperands<T> o) {
  constexpr int kQueries = kGradStep<W>;
  __shared__ Tile<kGradRows, W> k, v;
  __shared__ Tile<kQueries, W> q, dy;
  const Place p;
  const KeyBlock<kQueries> b(e);
  if (!is_wanted(e, b.head.b)) return;
  const int row = p.warp * 16, key = b.first + row;
  load_tile<kAttentionThreads>(k, o.keys(e, b.head), b.first);
  load_tile<kAttentionThreads>(v, o.values(e, b.head), b.first);
  Sums<W> dk = {}, dv = {};
  int step = b.next_visible(0);
  if (step < b.steps) {
    load_tile<kAttentionThreads>(q, o.queries(e, b.head_of_step(step)), b.query_of_step(step));
    load_tile<kAttentionThreads>(dy, o.slopes(e, b.head_of_step(step)), b.query_of_step(step));
  }
  while (step < b.steps) {
    const Head head = b.head_of_step(step);
    const int first = b.query_of_step(step), next = b.next_visible(step + 1);
    wait_for_copies();
    __syncthreads();
    Sums<kQueries> s = {}, dp = {};
    multiply_rows<T, 1, kQueries>(s, k, row, q);
    multiply_rows<T, 1, kQueries>(dp, v, row, dy);
    const bool all = all_visible(e, head.b, first, kQueries, b.first, kGradRows);
    to_score_grads<T>(s[0], dp[0], e, o, head, key + p.g, first + 2 * p.t, all);
    multiply_sums<T>(dv, s, dy);
    __syncthreads();  // no warp reads dy
    if (next < b.steps)
      load_tile<kAttentionThreads>(dy, o.slopes(e, b.head_of_step(next)), b.query_of_step(next));
    multiply_sums<T>(dk, dp, q);
    __syncthreads();  // no warp reads q
    if (next < b.steps)
      load_tile<kAttentionThreads>(q, o.queries(e, b.head_of_step(next)), b.query_of_step(next));
    step = next;
  }
  wait_for_copies();
  const int count = static_cast<int>(e.keys) - key;
  const float scale[2] = {e.scale, e.scale}, one[2] = {1, 1};
  store_sums(o.dk + b.head.b * e.k.batch + b.head.kv * e.k.head + key * e.k.row, e.k.row, count,
             static_cast<int>(e.width), o.packs, dk[0], scale);
  store_sums(o.dv + b.head.b * e.v.batch + b.head.kv * e.v.head + key * e.v.row, e.v.row, count,
             static_cast<int>(e.v_width), o.packs, dv[0], one);
}

}  // namespace

cudaError_t tensor_attention_grad(const AttentionParams& e, const AttentionGradient& g,
                                  cudaStream_t stream) {
  if (!takes_tensor_attention(e)) return cudaErrorNotSupported;
  const auto masks = static_cast<size_t>(e.batch * e.heads * e.queries * e.mask_keys) * 2;
  if (g.dmask != nullptr && masks > 0) OFSDP_CUDA_TRY(cudaMemsetAsync(g.dmask, 0, masks, stream));
  OFSDP_CUDA_TRY(tensor_query_gradient(e, g, stream));
  return with_tile_width(e, [&]<typename T, int W>() {
    const int64_t blocks = e.batch * e.kv_heads * blocks_for(e.keys, kGradRows);
    return launch_blocks(stream, blocks, kAttentionThreads, keys_kernel<T, W>, e,
                         gradient_operands<T>(e, g));
  });
}

}  // namespace ofsdp::kernels::cuda
