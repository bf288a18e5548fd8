// Forward pass on tensor cores. Blocks have four warps, 32 queries per warp (16 for heads wider
// than 64). The query tile stays in shared memory. K and V tiles of 64 rows alternate: V
// arrives while scores are computed, the next K while V is accumulated. At 128 columns the three
// tiles take 48 KiB.
#include "kernels/cuda/attention/tensor_attention.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kKeys = 64;

// Accumulators for 16 M queries: y, running maximum, and this lane's share of the exponential sums.
template <int M, int W>
struct Rows {
  float values[M][W / 8][4] = {};
  float max[M][2], sum[M][2] = {};

  // Online softmax (Milakov and Gimelshein, 2018): replaces scores by exponentials relative to the
  // new maximum and rescales y.
  __device__ void add(float (&s)[M][kKeys / 8][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = max[m][r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          top = Largest{}(Largest{}(top, s[m][n][2 * r]), s[m][n][2 * r + 1]);
        }
        top = row_reduce(top, Largest{});
        const float base = top == -INFINITY ? 0.0f : top;  // no visible key so far
        const float shrink = exp2f(max[m][r] - base);
        max[m][r] = top;
        sum[m][r] *= shrink;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = s[m][n][2 * r + i];
            x = exp2f(x - base);
            sum[m][r] += x;
          }
        }
#pragma unroll
        for (int n = 0; n < W / 8; ++n) {
          values[m][n][2 * r] *= shrink;
          values[m][n][2 * r + 1] *= shrink;
        }
      }
    }
  }
};

// Minimum blocks per multiprocessor for __launch_bounds__; 0: compiler's choice. Without the bound,
// the widest heads spill on sm_100.
template <int W>
inline constexpr int kBlocks = W == 128 ? 3 : 0;

// Block: one tile of kRows queries for one (batch, head). Warp w owns rows 16 M w .. 16 M (w + 1) -
// 1, from scores to y.
template <typename T, int W, int M>
__global__ void __launch_bounds__(kAttentionThreads, kBlocks<W>)
    forward_kernel(AttentionParams e, TensorOperands<T> o) {
  constexpr int kRows = 64 * M;
  __shared__ Tile<kRows, W> q;
  __shared__ Tile<kKeys, W> k, v;
  const Place p;
  const QueryBlock b = query_block<kRows, kKeys>(e);
  if (!is_wanted(e, b.head.b)) return;
  const int row = p.warp * 16 * M, query = b.first + row + p.g;
  const MatrixRows<T> keys = o.keys(e, b.head), values = o.values(e, b.head);
  load_tile<kAttentionThreads>(q, o.queries(e, b.head), b.first);
  if (b.low < b.high) load_tile<kAttentionThreads>(k, keys, b.low);
  Rows<M, W> rows;
  Span spans[M][2];
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    rows.max[i / 2][i % 2] = -INFINITY;
    spans[i / 2][i % 2] = visible_span(e, b.head.b, query + 8 * i);
  }
  for (int first = b.low; first < b.high; first += kKeys) {
    wait_for_copies();
    __syncthreads();  // q and k have arrived; no warp reads v
    load_tile<kAttentionThreads>(v, values, first);
    float s[M][kKeys / 8][4] = {};
    multiply_rows<T, M, kKeys>(s, q, row, k);
    const bool all = all_visible(e, b.head.b, b.first, kRows, first, kKeys);
    mask_scores<T>(s, e, b.head, query, first + 2 * p.t, spans, all);
    rows.add(s);
    wait_for_copies();
    __syncthreads();  // v has arrived; no warp reads k
    if (first + kKeys < b.high) load_tile<kAttentionThreads>(k, keys, first + kKeys);
    multiply_sums<T>(rows.values, s, v);
  }
  wait_for_copies();
#pragma unroll
  for (int m = 0; m < M; ++m) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_reduce(rows.sum[m][r], Add{});
      factor[r] = sum == 0 ? 0.0f : 1.0f / sum;
      const int at = query + 16 * m + 8 * r;
      if (o.statistics_out == nullptr || p.t != 0 || at >= e.queries) continue;
      o.statistics_out[stats_row(e, b.head, at)] = natural_log_sum_exp(rows.max[m][r], sum);
    }
    const int first = b.first + row + 16 * m;
    store_sums(o.y + b.head.b * e.y.batch + b.head.h * e.y.head + first * e.y.row, e.y.row,
               static_cast<int>(e.queries) - first, static_cast<int>(e.v_width), o.packs,
               rows.values[m], factor);
  }
}

}  // namespace

bool takes_tensor_attention(const AttentionParams& e) {
  constexpr int64_t kMax = int64_t{1} << 30;
  return is_16_bit_float(e.dtype) && !(e.softcap > 0) && std::max(e.width, e.v_width) <= 128 &&
         e.queries < kMax && e.keys < kMax;
}

cudaError_t tensor_attention(const AttentionParams& e, const void* q, const void* k, const void* v,
                             void* y, float* statistics, cudaStream_t stream) {
  return with_tile_width(e, [&]<typename T, int W>() {
    constexpr int M = W <= 64 ? 2 : 1;
    TensorOperands<T> o{};
    o.q = static_cast<const T*>(q);
    o.k = static_cast<const T*>(k);
    o.v = static_cast<const T*>(v);
    o.y = static_cast<T*>(y);
    o.statistics_out = statistics;
    o.packs = chunk_aligned(e, q, k, v, y);
    const int64_t blocks = e.batch * e.heads * blocks_for(e.queries, 64 * M);
    return launch_blocks(stream, blocks, kAttentionThreads, forward_kernel<T, W, M>, e, o);
  });
}

}  // namespace ofsdp::kernels::cuda
