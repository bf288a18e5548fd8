// Attention on tensor cores, shared by forward and backward: tiles in shared memory, warp matrix
// products, masking of scores in registers. Scores are in base 2 here (multiplied by log2(e)) for
// exp2f.
#pragma once

#include <tensor_core.cuh>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_score.cuh"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

// A tile [R, W] of 16-bit elements in shared memory. Fragments are laid out as ptx/tensor_core.cuh
// says; 16 rows of float32 accumulators are `float c[columns / 8][4]`.
//
// 16-byte chunks are XOR-swizzled by row: eight rows in one chunk column fall into different banks.
// Columns after the width and rows after the last are zeros. Products accumulate along k in steps
// of 16, ascending; inside a step the instruction decides.

template <int R, int W>
struct Tile {
  static constexpr int kRows = R, kWidth = W, kChunks = W / 8;
  Chunk chunks[R * kChunks];

  __device__ Chunk* at(int row, int chunk) {
    const int mix = W % 64 == 0 ? row % 8 : row / 2 % 4;
    return chunks + row * kChunks + (chunk ^ mix);
  }
};

// Rows of a matrix in device memory. packs: address, stride and width are multiples of 16 bytes.
template <typename T>
struct MatrixRows {
  const T* base;
  int64_t stride;
  int count, width;
  bool packs;
};

// Loads up to eight elements one by one; the rest are zeros.
template <typename T>
__device__ inline Chunk load_elements(const T* from, int count) {
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  Chunk made{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) made.word[i / 2] |= uint32_t{bits[i]} << (i % 2 * 16);
  }
  return made;
}

// Loads R rows from `first` on, with all threads in the block. Visible after wait_for_copies and a
// barrier.
template <int kThreads, typename T, int R, int W>
__device__ inline void load_tile(Tile<R, W>& tile, const MatrixRows<T>& from, int first) {
  for (int i = static_cast<int>(threadIdx.x); i < R * tile.kChunks; i += kThreads) {
    const int row = i / tile.kChunks, chunk = i % tile.kChunks;
    const bool there = first + row < from.count && 8 * chunk < from.width;
    const T* at = there ? from.base + (first + row) * from.stride + 8 * chunk : from.base;
    if (from.packs) {
      copy_async(tile.at(row, chunk), at, there);
    } else {
      *tile.at(row, chunk) = load_elements(at, there ? from.width - 8 * chunk : 0);
    }
  }
}

// c[m] += A B^T, with A = rows row + 16 m .. of `a` and B = the first N rows of `b`.
template <typename T, int M, int N, int R, int S, int W>
__device__ inline void multiply_rows(float (&c)[M][N / 8][4], Tile<R, W>& a, int row,
                                     Tile<S, W>& b) {
  static_assert(N <= S && N % 16 == 0 && W % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    Chunk left[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      left[m] = load_matrices(a.at(row + 16 * m + lane % 16, 2 * k + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      const Chunk right =
          load_matrices(b.at(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        TensorCore<T>::multiply(c[m][2 * n], left[m], right.word[0], right.word[1]);
        TensorCore<T>::multiply(c[m][2 * n + 1], left[m], right.word[2], right.word[3]);
      }
    }
  }
}

// Rounds accumulator columns 16 k .. 16 k + 15 into an A fragment.
template <typename T, int K>
__device__ inline Chunk to_fragment(const float (&c)[K][4], int k) {
  const auto &low = c[2 * k], &high = c[2 * k + 1];
  Chunk made;
  made.word[0] = TensorCore<T>::two(low[0], low[1]);
  made.word[1] = TensorCore<T>::two(low[2], low[3]);
  made.word[2] = TensorCore<T>::two(high[0], high[1]);
  made.word[3] = TensorCore<T>::two(high[2], high[3]);
  return made;
}

// c[m] += a[m] B, with a[m] [16, N] rounded to T and B = the first N rows of `b`.
template <typename T, int M, int N, int S, int W>
__device__ inline void multiply_sums(float (&c)[M][W / 8][4], const float (&a)[M][N][4],
                                     Tile<S, W>& b) {
  static_assert(8 * N <= S && N % 2 == 0);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int k = 0; k < N / 2; ++k) {
    Chunk left[M];
#pragma unroll
    for (int m = 0; m < M; ++m) left[m] = to_fragment<T>(a[m], k);
#pragma unroll
    for (int n = 0; n < W / 16; ++n) {
      const Chunk right = load_transposed_matrices(b.at(16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        TensorCore<T>::multiply(c[m][2 * n], left[m], right.word[0], right.word[1]);
        TensorCore<T>::multiply(c[m][2 * n + 1], left[m], right.word[2], right.word[3]);
      }
    }
  }
}

// Stores the lane's rows g and g + 8, multiplied by factor[0] and factor[1], if they are below
// `count`.
template <typename T, int N>
__device__ inline void store_sums(T* to, int64_t stride, int count, int width, bool packs,
                                  const float (&c)[N][4], const float (&factor)[2]) {
  const int g = static_cast<int>(threadIdx.x % kWarp) / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (g + 8 * r >= count) continue;
    T* row = to + (g + 8 * r) * stride;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int column = 8 * n + 2 * t;
      const float two[2] = {c[n][2 * r] * factor[r], c[n][2 * r + 1] * factor[r]};
      if (packs && column < width) store<2>(row + column, two);
      if (!packs && column < width) row[column] = Stored<T>::from(two[0]);
      if (!packs && column + 1 < width) row[column + 1] = Stored<T>::from(two[1]);
    }
  }
}

// --- scores ---

inline constexpr int kAttentionThreads = 128;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <typename T>
struct TensorOperands : AttentionPointers<T> {
  bool packs;  // all operands allow 16-byte access

  __device__ MatrixRows<T> queries(const AttentionParams& e, const Head& h) const {
    return {this->q + h.b * e.q.batch + h.h * e.q.head, e.q.row, int(e.queries), int(e.width),
            packs};
  }
  __device__ MatrixRows<T> slopes(const AttentionParams& e, const Head& h) const {
    return {this->dy + h.b * e.y.batch + h.h * e.y.head, e.y.row, int(e.queries), int(e.v_width),
            packs};
  }
  __device__ MatrixRows<T> keys(const AttentionParams& e, const Head& h) const {
    return {this->k + h.b * e.k.batch + h.kv * e.k.head, e.k.row, int(e.keys), int(e.width), packs};
  }
  __device__ MatrixRows<T> values(const AttentionParams& e, const Head& h) const {
    return {this->v + h.b * e.v.batch + h.kv * e.v.head, e.v.row, int(e.keys), int(e.v_width),
            packs};
  }
};

template <typename... P>
bool chunk_aligned(const AttentionParams& e, const P*... pointers) {
  bool even = e.width % 8 == 0 && e.v_width % 8 == 0;
  for (const HeadStrides& s : {e.q, e.k, e.v, e.y}) {
    even = even && s.batch % 8 == 0 && s.head % 8 == 0 && s.row % 8 == 0;
  }
  return even && aligned16(8, 2, pointers...);
}

// Calls f<T, W>() with the smallest tile width W that fits.
template <typename F>
cudaError_t with_tile_width(const AttentionParams& e, const F& f) {
  const int64_t width = std::max(e.width, e.v_width);
  const auto of_type = [&]<typename T>(T) {
    if (width <= 32) return f.template operator()<T, 32>();
    if (width <= 64) return f.template operator()<T, 64>();
    if (width <= 96) return f.template operator()<T, 96>();
    return f.template operator()<T, 128>();
  };
  if (!takes_tensor_attention(e)) return cudaErrorNotSupported;
  return e.dtype == DType::kFloat16 ? of_type(__half{}) : of_type(__nv_bfloat16{});
}

// A lane's place in 16 x 8 accumulators: rows g and g + 8, columns 2t and 2t + 1.
struct Place {
  int warp = static_cast<int>(threadIdx.x / kWarp);
  int g = static_cast<int>(threadIdx.x % kWarp) / 4, t = static_cast<int>(threadIdx.x) % 4;
};

// Index into [batch, heads, queries].
__device__ inline int64_t stats_row(const AttentionParams& e, const Head& head, int query) {
  return (head.b * e.heads + head.h) * e.queries + query;
}
// Log-sum-exp in the natural base, from a base-2 maximum and the sum of 2^(score - max).
__device__ inline float natural_log_sum_exp(float max, float sum) {
  return sum == 0 ? INFINITY : (max + log2f(sum)) * kLn2;
}

struct Span {
  int low, high;
};
__device__ inline Span visible_span(const AttentionParams& e, int64_t b, int query) {
  if (query >= e.queries) return {0, 0};
  const Range r = key_range(e, b, query);
  return {static_cast<int>(r.low), static_cast<int>(r.high)};
}

// Returns true if all `queries` queries see all `keys` keys and no mask applies, so masking can be
// skipped.
__device__ inline bool all_visible(const AttentionParams& e, int64_t b, int query, int queries,
                                   int key, int keys) {
  if (e.mask_kind != MaskKind::kNone || query + queries > e.queries) return false;
  return visible_span(e, b, query + queries - 1).low <= key &&
         visible_span(e, b, query).high >= key + keys;
}

template <typename T>
__device__ inline float mask_value(const AttentionParams& e, const Head& head, int query, int key) {
  const int64_t at = head.b * e.mask_strides[0] + head.h * e.mask_strides[1] +
                     query * e.mask_strides[2] + key * e.mask_strides[3];
  if (e.mask_kind == MaskKind::kBool)
    return static_cast<const bool*>(e.mask)[at] ? 0.0f : -INFINITY;
  return to_float(static_cast<const T*>(e.mask)[at]) * kLog2E;
}

// Mask value if it does not depend on the query, otherwise 0.
template <typename T>
__device__ inline float key_bias(const AttentionParams& e, const Head& head, int key) {
  const bool has = e.mask_kind != MaskKind::kNone && e.mask_strides[2] == 0 && key < e.mask_keys;
  return has ? mask_value<T>(e, head, 0, key) : 0.0f;
}

// Returns the masked base-2 score, or -infinity if the key is not visible.
template <typename T>
__device__ inline float masked_score(const AttentionParams& e, const Head& head, int query, int key,
                                     const Span& span, float score, float bias) {
  if (key < span.low || key >= span.high) return -INFINITY;
  if (e.mask_kind != MaskKind::kNone && e.mask_strides[2] != 0) {
    bias = mask_value<T>(e, head, query, key);
  }
  return bias == -INFINITY ? bias : score + bias;
}

// The block's queries and the keys that any of them sees. Late queries come first in the grid:
// under causal masks they have the most work.
struct QueryBlock {
  Head head;
  int first, low, high;
};
template <int kRows, int kKeys>
__device__ inline QueryBlock query_block(const AttentionParams& e) {
  const int64_t tiles = (e.queries + kRows - 1) / kRows;
  QueryBlock b;
  b.head = find_head(e, blockIdx.x / tiles);
  b.first = static_cast<int>(tiles - 1 - blockIdx.x % tiles) * kRows;
  b.low = visible_span(e, b.head.b, b.first).low / kKeys * kKeys;
  b.high =
      visible_span(e, b.head.b, static_cast<int>(min_index(b.first + kRows, e.queries)) - 1).high;
  return b;
}

// Scales raw scores to base 2 and masks them. `query` and `key` are the lane's first row and
// column.
template <typename T, int M, int N>
__device__ inline void mask_scores(float (&s)[M][N][4], const AttentionParams& e, const Head& head,
                                   int query, int key, const Span (&spans)[M][2], bool all) {
  const float scale = e.scale * kLog2E;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = key + 8 * n + i;
      const float bias = all ? 0.0f : key_bias<T>(e, head, at);
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float& x = s[m][n][2 * r + i];
          x *= scale;
          if (!all) x = masked_score<T>(e, head, query + 16 * m + 8 * r, at, spans[m][r], x, bias);
        }
      }
    }
  }
}

// Reduces over the four lanes that share a row.
template <typename F>
__device__ inline float row_reduce(float v, F f) {
  v = f(v, __shfl_xor_sync(kAllLanes, v, 1));
  return f(v, __shfl_xor_sync(kAllLanes, v, 2));
}

}  // namespace ofsdp::kernels::cuda
