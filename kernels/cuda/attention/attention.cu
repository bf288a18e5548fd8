// One warp per query (per key for dk and dv). While computing scores, a lane is one of 32 keys in a
// tile; while accumulating rows, a lane is a column. Tiles of K, V, Q or dY take turns in one
// shared-memory buffer, padded by one column against bank conflicts.
#include <cmath>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_score.cuh"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kTile = 32;

// Loads kTile rows from `first` on into shared memory, multiplied by `scale`, zeros after `rows`.
// All threads take part; barriers before and after.
template <int kWidth, int kThreads, typename T>
__device__ inline void load_tile(float (*tile)[kWidth + 1], const T* base, int64_t row_stride,
                                 int64_t first, int64_t rows, int64_t width, float scale) {
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kTile * width; i += kThreads) {
    const int64_t row = i / width, column = i - row * width;
    const bool there = first + row < rows;
    tile[row][column] = there ? to_float(base[(first + row) * row_stride + column]) * scale : 0.0f;
  }
  __syncthreads();
}

// Loads the warp's own query or key row into shared memory.
template <typename T>
__device__ inline void load_row(float* to, const T* from, bool there, int64_t width, float scale) {
  for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp) {
    to[i] = there ? to_float(from[i]) * scale : 0.0f;
  }
}

__device__ inline float dot(const float* a, const float* b, int64_t width) {
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

// acc += weights times tile. Lane `row` holds the weight of that row; each lane accumulates kWidth
// / kWarp columns.
template <int kWidth>
__device__ inline void add_rows(float* acc, float weight, const float (*tile)[kWidth + 1],
                                int64_t width) {
  for (int row = 0; row < kTile; ++row) {
    const float w = __shfl_sync(kAllLanes, weight, row);
#pragma unroll
    for (int j = 0; j < kWidth / kWarp; ++j) {
      const int64_t column = static_cast<int64_t>(threadIdx.x % kWarp) + j * kWarp;
      if (column < width) acc[j] += w * tile[row][column];
    }
  }
}

template <int kWidth, typename T>
__device__ inline void store_row(T* to, const float* acc, int64_t width, float scale) {
#pragma unroll
  for (int j = 0; j < kWidth / kWarp; ++j) {
    const int64_t column = static_cast<int64_t>(threadIdx.x % kWarp) + j * kWarp;
    if (column < width) to[column] = Stored<T>::from(acc[j] * scale);
  }
}

// The warp's query, and the key range that any query in the block sees. Tile loops need the common
// range, since all warps share the tiles.
struct Place {
  Head head;
  int64_t item, query, low, high;
  bool there;
  Range range;
};
template <int kWarps>
__device__ inline Place find_place(const AttentionParams& e) {
  const int64_t tiles = (e.queries + kWarps - 1) / kWarps;
  const int64_t item = blockIdx.x / tiles, first = blockIdx.x % tiles * kWarps;
  Place p;
  p.head = find_head(e, item);
  p.query = first + threadIdx.x / kWarp;
  p.there = p.query < e.queries;
  p.item = item * e.queries + p.query;
  p.low = key_range(e, p.head.b, first).low / kTile * kTile;
  p.high = key_range(e, p.head.b, min_index(first + kWarps, e.queries) - 1).high;
  p.range = p.there ? key_range(e, p.head.b, p.query) : Range{0, 0};
  return p;
}

// Grid: batch * heads * ceil(queries / kWarps) blocks, one warp per query. Online softmax over key
// tiles; y in registers.
template <typename T, int kWidth, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    forward_kernel(AttentionParams e, AttentionPointers<T> o) {
  constexpr int kThreads = kWarps * kWarp;
  __shared__ float tile[kTile][kWidth + 1];
  __shared__ float rows[kWarps][kWidth];
  const Place p = find_place<kWarps>(e);
  if (!is_wanted(e, p.head.b)) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float* q = rows[threadIdx.x / kWarp];
  load_row(q, o.q + p.head.b * e.q.batch + p.head.h * e.q.head + p.query * e.q.row, p.there,
           e.width, e.scale);
  const T* k = o.k + p.head.b * e.k.batch + p.head.kv * e.k.head;
  const T* v = o.v + p.head.b * e.v.batch + p.head.kv * e.v.head;
  float acc[kWidth / kWarp] = {};
  float max = -INFINITY, sum = 0;
  for (int64_t first = p.low; first < p.high; first += kTile) {
    load_tile<kWidth, kThreads>(tile, k, e.k.row, first, e.keys, e.width, 1.0f);
    const float raw = dot(q, tile[lane], e.width);
    const float score = masked<T>(e, p.head, p.query, first + lane, p.range, apply_softcap(e, raw));
    load_tile<kWidth, kThreads>(tile, v, e.v.row, first, e.keys, e.v_width, 1.0f);
    const float grown = Largest{}(max, warp_reduce(score, Largest{}));
    if (grown == -INFINITY) continue;  // uniform in the warp
    const float weight = score == -INFINITY ? 0.0f : expf(score - grown);
    const float shrink = max == -INFINITY ? 0.0f : expf(max - grown);
    sum = sum * shrink + warp_reduce(weight, Add{});
#pragma unroll
    for (int j = 0; j < kWidth / kWarp; ++j) acc[j] *= shrink;
    add_rows<kWidth>(acc, weight, tile, e.v_width);
    max = grown;
  }
  if (!p.there) return;
  T* y = o.y + p.head.b * e.y.batch + p.head.h * e.y.head + p.query * e.y.row;
  store_row<kWidth>(y, acc, e.v_width, sum == 0 ? 0.0f : 1.0f / sum);
  if (o.statistics_out != nullptr && lane == 0) o.statistics_out[p.item] = log_sum_exp(max, sum);
}

// Recomputes log-sum-exp and delta if the forward pass saved nothing.
template <typename T, int kWidth, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    stats_kernel(AttentionParams e, AttentionPointers<T> o) {
  constexpr int kThreads = kWarps * kWarp;
  __shared__ float tile[kTile][kWidth + 1];
  __shared__ float rows[kWarps][kWidth];
  const Place p = find_place<kWarps>(e);
  if (!is_wanted(e, p.head.b)) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float* row = rows[threadIdx.x / kWarp];
  const T* q = o.q + p.head.b * e.q.batch + p.head.h * e.q.head + p.query * e.q.row;
  const T* dy = o.dy + p.head.b * e.y.batch + p.head.h * e.y.head + p.query * e.y.row;
  const T* k = o.k + p.head.b * e.k.batch + p.head.kv * e.k.head;
  const T* v = o.v + p.head.b * e.v.batch + p.head.kv * e.v.head;
  float max = -INFINITY, sum = 0, delta = 0;
  for (int64_t first = p.low; first < p.high; first += kTile) {
    load_row(row, q, p.there, e.width, e.scale);
    load_tile<kWidth, kThreads>(tile, k, e.k.row, first, e.keys, e.width, 1.0f);
    const float raw = dot(row, tile[lane], e.width);
    const float score = masked<T>(e, p.head, p.query, first + lane, p.range, apply_softcap(e, raw));
    __syncthreads();
    load_row(row, dy, p.there, e.v_width, 1.0f);
    load_tile<kWidth, kThreads>(tile, v, e.v.row, first, e.keys, e.v_width, 1.0f);
    const float dp = dot(row, tile[lane], e.v_width);
    __syncthreads();
    const float grown = Largest{}(max, warp_reduce(score, Largest{}));
    if (grown == -INFINITY) continue;
    const float weight = score == -INFINITY ? 0.0f : expf(score - grown);
    const float shrink = max == -INFINITY ? 0.0f : expf(max - grown);
    sum = sum * shrink + warp_reduce(weight, Add{});
    delta = delta * shrink + warp_reduce(weight == 0.0f ? 0.0f : weight * dp, Add{});
    max = grown;
  }
  if (!p.there || lane != 0) return;
  o.statistics_out[p.item] = log_sum_exp(max, sum);
  o.delta[p.item] = sum == 0 ? 0.0f : delta / sum;
}

// Probability and score gradient before softcap.
struct ScoreGrad {
  float p, ds;
};
template <typename T>
__device__ inline ScoreGrad score_grad(const AttentionPointers<T>& o, int64_t item, float score,
                                       float dp) {
  if (score == -INFINITY) return {0, 0};
  const float p = expf(score - o.statistics[item]);
  return {p, p * (dp - o.delta[item])};
}
// Chain rule through softcap * tanh(score / softcap).
__device__ inline float softcap_grad(const AttentionParams& e, float ds, float cap_score) {
  if (!(e.softcap > 0)) return ds;
  const float t = cap_score / e.softcap;
  return ds * (1.0f - t * t);
}

// dq and dmask; the grid is that of the forward pass.
template <typename T, int kWidth, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    queries_kernel(AttentionParams e, AttentionPointers<T> o) {
  constexpr int kThreads = kWarps * kWarp;
  __shared__ float tile[kTile][kWidth + 1];
  __shared__ float rows[kWarps][kWidth];
  const Place p = find_place<kWarps>(e);
  if (!is_wanted(e, p.head.b)) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float* row = rows[threadIdx.x / kWarp];
  const T* q = o.q + p.head.b * e.q.batch + p.head.h * e.q.head + p.query * e.q.row;
  const T* dy = o.dy + p.head.b * e.y.batch + p.head.h * e.y.head + p.query * e.y.row;
  const T* k = o.k + p.head.b * e.k.batch + p.head.kv * e.k.head;
  const T* v = o.v + p.head.b * e.v.batch + p.head.kv * e.v.head;
  float acc[kWidth / kWarp] = {};
  for (int64_t first = p.low; first < p.high; first += kTile) {
    const int64_t key = first + lane;
    load_row(row, dy, p.there, e.v_width, 1.0f);
    load_tile<kWidth, kThreads>(tile, v, e.v.row, first, e.keys, e.v_width, 1.0f);
    const float dp = dot(row, tile[lane], e.v_width);
    __syncthreads();
    load_row(row, q, p.there, e.width, e.scale);
    load_tile<kWidth, kThreads>(tile, k, e.k.row, first, e.keys, e.width, 1.0f);
    const float cap_score = apply_softcap(e, dot(row, tile[lane], e.width));
    const float score = masked<T>(e, p.head, p.query, key, p.range, cap_score);
    const float ds = p.there ? score_grad(o, p.item, score, dp).ds : 0.0f;
    if (o.dmask != nullptr && p.there && key < e.mask_keys) {
      o.dmask[p.item * e.mask_keys + key] = Stored<T>::from(ds);
    }
    add_rows<kWidth>(acc, softcap_grad(e, ds, cap_score), tile, e.width);
    __syncthreads();
  }
  if (!p.there) return;
  store_row<kWidth>(o.dq + p.head.b * e.q.batch + p.head.h * e.q.head + p.query * e.q.row, acc,
                    e.width, e.scale);
}

// One warp per key: sums dk and dv over the query heads that share the key head, then over tiles of
// queries (lanes are queries).
template <typename T, int kWidth, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    keys_kernel(AttentionParams e, AttentionPointers<T> o) {
  constexpr int kThreads = kWarps * kWarp;
  __shared__ float tile[kTile][kWidth + 1];
  __shared__ float rows[kWarps][kWidth];
  const int64_t tiles = (e.keys + kWarps - 1) / kWarps;
  const int64_t item = blockIdx.x / tiles, first_key = blockIdx.x % tiles * kWarps;
  const int64_t b = item / e.kv_heads, kv = item % e.kv_heads, group = e.heads / e.kv_heads;
  if (!is_wanted(e, b)) return;
  const int64_t key = first_key + threadIdx.x / kWarp;
  const bool there = key < e.keys;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float* row = rows[threadIdx.x / kWarp];
  const T* k = o.k + b * e.k.batch + kv * e.k.head + key * e.k.row;
  const T* v = o.v + b * e.v.batch + kv * e.v.head + key * e.v.row;
  float dk[kWidth / kWarp] = {}, dv[kWidth / kWarp] = {};
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    const Head head{b, h, kv};
    const T* q = o.q + b * e.q.batch + h * e.q.head;
    const T* dy = o.dy + b * e.y.batch + h * e.y.head;
    for (int64_t first = 0; first < e.queries; first += kTile) {
      const int64_t last = min_index(first + kTile, e.queries) - 1, query = first + lane;
      const bool asks = there && query < e.queries;
      if (key_range(e, b, last).high <= first_key) continue;  // uniform in the block
      load_row(row, v, there, e.v_width, 1.0f);
      load_tile<kWidth, kThreads>(tile, dy, e.y.row, first, e.queries, e.v_width, 1.0f);
      const float dp = dot(row, tile[lane], e.v_width);
      __syncthreads();
      load_row(row, k, there, e.width, 1.0f);
      load_tile<kWidth, kThreads>(tile, q, e.q.row, first, e.queries, e.width, e.scale);
      const float cap_score = apply_softcap(e, dot(row, tile[lane], e.width));
      ScoreGrad s{0, 0};
      if (asks) {
        const float score = masked<T>(e, head, query, key, key_range(e, b, query), cap_score);
        s = score_grad(o, (b * e.heads + h) * e.queries + query, score, dp);
      }
      add_rows<kWidth>(dk, softcap_grad(e, s.ds, cap_score), tile, e.width);
      load_tile<kWidth, kThreads>(tile, dy, e.y.row, first, e.queries, e.v_width, 1.0f);
      add_rows<kWidth>(dv, s.p, tile, e.v_width);
      __syncthreads();
    }
  }
  if (!there) return;
  store_row<kWidth>(o.dk + b * e.k.batch + kv * e.k.head + key * e.k.row, dk, e.width, 1.0f);
  store_row<kWidth>(o.dv + b * e.v.batch + kv * e.v.head + key * e.v.row, dv, e.v_width, 1.0f);
}

template <typename T, int kWidth, int kWarps>
cudaError_t launch_backward(const AttentionParams& e, const AttentionGradient& g,
                            const AttentionPointers<T>& o, cudaStream_t stream) {
  constexpr int kThreads = kWarps * kWarp;
  const int64_t by_query = e.batch * e.heads * blocks_for(e.queries, kWarps);
  const int64_t by_key = e.batch * e.kv_heads * blocks_for(e.keys, kWarps);
  OFSDP_CUDA_TRY(g.statistics != nullptr ? attention_delta(e, g, o.delta, stream)
                                         : launch_blocks(stream, by_query, kThreads,
                                                         stats_kernel<T, kWidth, kWarps>, e, o));
  OFSDP_CUDA_TRY(
      launch_blocks(stream, by_query, kThreads, queries_kernel<T, kWidth, kWarps>, e, o));
  return launch_blocks(stream, by_key, kThreads, keys_kernel<T, kWidth, kWarps>, e, o);
}

template <typename T, int kWidth, int kWarps>
cudaError_t launch_forward(const AttentionParams& e, const AttentionPointers<T>& o,
                           cudaStream_t stream) {
  return launch_blocks(stream, e.batch * e.heads * blocks_for(e.queries, kWarps), kWarps * kWarp,
                       forward_kernel<T, kWidth, kWarps>, e, o);
}

constexpr int kLanes = 8;  // lanes per query

// Eight lanes per query; a lane loads N elements at a time.
template <typename T, int N>
OFSDP_CUDA_KERNEL delta_kernel(AttentionParams e, const T* dy, const T* y, HeadStrides at_y,
                               float* delta) {
  const int64_t item = int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const bool there =
      item < e.batch * e.heads * e.queries && is_wanted(e, item / e.queries / e.heads);
  float sum = 0;
  if (there) {
    const int64_t query = item % e.queries, h = item / e.queries % e.heads;
    const int64_t b = item / e.queries / e.heads;
    const T* left = dy + b * e.y.batch + h * e.y.head + query * e.y.row;
    const T* right = y + b * at_y.batch + h * at_y.head + query * at_y.row;
    for (int64_t i = lane * N; i < e.v_width; i += kLanes * N) {
      float p[N], q[N];
      load<N>(left + i, p);
      load<N>(right + i, q);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += p[j] * q[j];
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (there && lane == 0) delta[item] = sum;
}

bool in_packs(const AttentionParams& e, const AttentionGradient& g, size_t size) {
  const auto pack = static_cast<int64_t>(16 / size);
  bool even = true;
  for (const HeadStrides& s : {e.y, g.y_strides}) {
    even = even && s.batch % pack == 0 && s.head % pack == 0 && s.row % pack == 0;
  }
  return even && aligned16(e.v_width, size, g.dy, g.y);
}

}  // namespace

cudaError_t attention(const AttentionParams& e, const void* q, const void* k, const void* v,
                      void* y, float* statistics, cudaStream_t stream) {
  const int64_t width = std::max(e.width, e.v_width);
  if (width > 256) return cudaErrorNotSupported;
  return with_float(e.dtype, [&]<typename T>(T) {
    AttentionPointers<T> o{};
    o.q = static_cast<const T*>(q);
    o.k = static_cast<const T*>(k);
    o.v = static_cast<const T*>(v);
    o.y = static_cast<T*>(y);
    o.statistics_out = statistics;
    if (width <= 64) return launch_forward<T, 64, 8>(e, o, stream);
    return width <= 128 ? launch_forward<T, 128, 8>(e, o, stream)
                        : launch_forward<T, 256, 4>(e, o, stream);
  });
}

size_t attention_grad_scratch(const AttentionParams& e, bool kept) {
  const int64_t numbers = e.batch * e.heads * e.queries;
  return round_up(static_cast<size_t>(kept ? numbers : 2 * numbers) * sizeof(float));
}

cudaError_t attention_grad(const AttentionParams& e, const AttentionGradient& g,
                           cudaStream_t stream) {
  const int64_t width = std::max(e.width, e.v_width);
  if (width > 256) return cudaErrorNotSupported;
  return with_float(e.dtype, [&]<typename T>(T) {
    const AttentionPointers<T> o = gradient_pointers<T>(e, g);
    const auto masks = static_cast<size_t>(e.batch * e.heads * e.queries * e.mask_keys) * sizeof(T);
    if (g.dmask != nullptr && masks > 0) OFSDP_CUDA_TRY(cudaMemsetAsync(g.dmask, 0, masks, stream));
    if (width <= 64) return launch_backward<T, 64, 8>(e, g, o, stream);
    return width <= 128 ? launch_backward<T, 128, 8>(e, g, o, stream)
                        : launch_backward<T, 256, 4>(e, g, o, stream);
  });
}

cudaError_t attention_delta(const AttentionParams& e, const AttentionGradient& g, float* delta,
                            cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    const int64_t blocks = blocks_for(e.batch * e.heads * e.queries, kThreads / kLanes);
    const auto launch = [&](auto kernel) {
      return launch_blocks(stream, blocks, kThreads, kernel, e, g.dy, g.y, g.y_strides, delta);
    };
    return in_packs(e, g, sizeof(T)) ? launch(delta_kernel<T, kPack<T>>)
                                     : launch(delta_kernel<T, 1>);
  });
}

}  // namespace ofsdp::kernels::cuda
