// The gradient's dk and dv. A block's warps have 16 keys each, scores lie transposed, so that
// they are left factors as they are.
#include "kernels/cuda/attention/tensor_attention_grad.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// A block of keys of a key head, and the (query head, tile of queries) that it walks.
template <int kQueries>
struct KeyBlock {
  const AttentionExtent& e;
  Head head;  // of the keys; h is the first of its query heads
  int first, tiles, steps;

  __device__ explicit KeyBlock(const AttentionExtent& extent) : e(extent) {
    const int64_t key_tiles = (e.keys + kGradRows - 1) / kGradRows, group = e.heads / e.kv_heads;
    const int64_t item = blockIdx.x / key_tiles;
    head = {item / e.kv_heads, item % e.kv_heads * group, item % e.kv_heads};
    first = static_cast<int>(blockIdx.x % key_tiles) * kGradRows;
    tiles = static_cast<int>((e.queries + kQueries - 1) / kQueries);
    steps = static_cast<int>(group) * tiles;
  }
  __device__ Head head_of_step(int step) const { return {head.b, head.h + step / tiles, head.kv}; }
  __device__ int query_of_step(int step) const { return step % tiles * kQueries; }
  // The first step from this one on in which any query sees any key.
  __device__ int seen_from(int step) const {
    for (; step < steps; ++step) {
      const int query = query_of_step(step);
      const int last = static_cast<int>(least(query + kQueries, e.queries)) - 1;
      if (span_of(e, head.b, last).high > first &&
          span_of(e, head.b, query).low < first + kGradRows)
        break;
    }
    return step;
  }
};

// Raw scores of a lane's keys (rows; the first is `key`) and queries, and their dp, as p and ds.
template <typename T, int N>
__device__ inline void to_slopes(float (&s)[N][4], float (&dp)[N][4], const AttentionExtent& e,
                                 const TensorOperands<T>& o, const Head& head, int key, int query,
                                 bool all) {
  const float scale = e.scale * kLog2E;
  const float bias[2] = {all ? 0.0f : key_bias<T>(e, head, key),
                         all ? 0.0f : key_bias<T>(e, head, key + 8)};
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = query + 8 * n + j;
      const bool there = at < e.queries;
      const Span span = all ? Span{} : span_of(e, head.b, at);
      const float log_sum = there ? o.statistics[stats_row(e, head, at)] * kLog2E : 0.0f;
      const float delta = there ? o.delta[stats_row(e, head, at)] : 0.0f;
#pragma unroll
      for (int i = j; i < 4; i += 2) {
        float x = s[n][i] * scale;
        if (!all) x = seen<T>(e, head, at, key + i / 2 * 8, span, x, bias[i / 2]);
        s[n][i] = x;
        to_slope(s[n][i], dp[n][i], log_sum, delta);
      }
    }
  }
}

// Blocks a multiprocessor; 0: as nvcc likes. Of the narrowest heads three fit, and left alone it
// spills for sm_100.
template <int W>
inline constexpr int kKeyBlocks = W == 32 ? 3 : 0;

template <typename T, int W>
__global__ void __launch_bounds__(kAttentionThreads, kKeyBlocks<W>)
    keys_kernel(AttentionExtent e, TensorOperands<T> o) {
  constexpr int kQueries = kGradStep<W>;
  __shared__ Tile<kGradRows, W> k, v;
  __shared__ Tile<kQueries, W> q, dy;
  const Place p;
  const KeyBlock<kQueries> b(e);
  const int row = p.warp * 16, key = b.first + row;
  load_tile<kAttentionThreads>(k, o.keys(e, b.head), b.first);
  load_tile<kAttentionThreads>(v, o.values(e, b.head), b.first);
  Sums<W> dk = {}, dv = {};
  int step = b.seen_from(0);
  if (step < b.steps) {
    load_tile<kAttentionThreads>(q, o.queries(e, b.head_of_step(step)), b.query_of_step(step));
    load_tile<kAttentionThreads>(dy, o.slopes(e, b.head_of_step(step)), b.query_of_step(step));
  }
  while (step < b.steps) {
    const Head head = b.head_of_step(step);
    const int first = b.query_of_step(step), next = b.seen_from(step + 1);
    wait_for_copies();
    __syncthreads();
    Sums<kQueries> s = {}, dp = {};
    multiply_rows<T, 1, kQueries>(s, k, row, q);
    multiply_rows<T, 1, kQueries>(dp, v, row, dy);
    const bool all = sees_all(e, head.b, first, kQueries, b.first, kGradRows);
    to_slopes<T>(s[0], dp[0], e, o, head, key + p.g, first + 2 * p.t, all);
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

size_t tensor_attention_grad_scratch(const AttentionExtent& e, bool kept) {
  return attention_grad_scratch(e, kept);
}

cudaError_t tensor_attention_grad(const AttentionExtent& e, const AttentionGradient& g,
                                  cudaStream_t stream) {
  if (!takes_tensor_attention(e)) return cudaErrorNotSupported;
  const auto masks = static_cast<size_t>(e.batch * e.heads * e.queries * e.mask_keys) * 2;
  if (g.dmask != nullptr && masks > 0) OFSDP_CUDA_TRY(cudaMemsetAsync(g.dmask, 0, masks, stream));
  OFSDP_CUDA_TRY(tensor_query_gradient(e, g, stream));
  return with_tensor_width(e, [&]<typename T, int W>() {
    const int64_t blocks = e.batch * e.kv_heads * blocks_for(e.keys, kGradRows);
    return launch_blocks(stream, blocks, kAttentionThreads, keys_kernel<T, W>, e,
                         gradient_operands<T>(e, g));
  });
}

}  // namespace ofsdp::kernels::cuda
