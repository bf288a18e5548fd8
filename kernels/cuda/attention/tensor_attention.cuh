// Shared by tensor_attention.cu and both files of the gradient: which kernel takes what, operands,
// and scores as they lie in the registers of a warp. Scores are in base 2 here: times log2(e), for
// exp2f.
#pragma once

#include "kernels/cuda/attention/attention_score.cuh"
#include "kernels/cuda/attention/tensor_attention.h"
#include "kernels/cuda/attention/tensor_tiles.cuh"

namespace ofsdp::kernels::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <typename T>
struct TensorOperands : AttentionPointers<T> {
  bool packs;  // everything can be read and written in whole chunks

  __device__ RowsOf<T> queries(const AttentionExtent& e, const Head& h) const {
    return {this->q + h.b * e.q.batch + h.h * e.q.head, e.q.row, int(e.queries), int(e.width),
            packs};
  }
  __device__ RowsOf<T> slopes(const AttentionExtent& e, const Head& h) const {
    return {this->dy + h.b * e.y.batch + h.h * e.y.head, e.y.row, int(e.queries), int(e.v_width),
            packs};
  }
  __device__ RowsOf<T> keys(const AttentionExtent& e, const Head& h) const {
    return {this->k + h.b * e.k.batch + h.kv * e.k.head, e.k.row, int(e.keys), int(e.width), packs};
  }
  __device__ RowsOf<T> values(const AttentionExtent& e, const Head& h) const {
    return {this->v + h.b * e.v.batch + h.kv * e.v.head, e.v.row, int(e.keys), int(e.v_width),
            packs};
  }
};

template <typename... P>
bool whole_chunks(const AttentionExtent& e, const P*... pointers) {
  bool even = e.width % 8 == 0 && e.v_width % 8 == 0;
  for (const HeadStrides& s : {e.q, e.k, e.v, e.y}) {
    even = even && s.batch % 8 == 0 && s.head % 8 == 0 && s.row % 8 == 0;
  }
  return even && aligned16(8, 2, pointers...);
}

// Calls f<T, W>(), W the width of the tiles.
template <typename F>
cudaError_t with_tensor_width(const AttentionExtent& e, const F& f) {
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

// A lane's rows of 16 are g and g + 8, its columns of 8 are 2t and 2t + 1.
struct Place {
  int warp = static_cast<int>(threadIdx.x / kWarp);
  int g = static_cast<int>(threadIdx.x % kWarp) / 4, t = static_cast<int>(threadIdx.x) % 4;
};

// The tensors with one number a query.
__device__ inline int64_t stats_row(const AttentionExtent& e, const Head& head, int query) {
  return (head.b * e.heads + head.h) * e.queries + query;
}
// From a maximum in base 2 and the sum of 2^(score - maximum).
__device__ inline float natural_log_sum(float max, float sum) {
  return sum == 0 ? INFINITY : (max + log2f(sum)) * kLn2;
}

struct Span {
  int low, high;
};
__device__ inline Span span_of(const AttentionExtent& e, int64_t b, int query) {
  if (query >= e.queries) return {0, 0};
  const Range r = range_of(e, b, query);
  return {static_cast<int>(r.low), static_cast<int>(r.high)};
}

// Whether each of `queries` from one on sees each of `keys` from one on, and no mask adds anything.
__device__ inline bool sees_all(const AttentionExtent& e, int64_t b, int query, int queries,
                                int key, int keys) {
  if (e.mask_kind != MaskKind::kNone || query + queries > e.queries) return false;
  return span_of(e, b, query + queries - 1).low <= key && span_of(e, b, query).high >= key + keys;
}

template <typename T>
__device__ inline float mask_value(const AttentionExtent& e, const Head& head, int query, int key) {
  const int64_t at = head.b * e.mask_strides[0] + head.h * e.mask_strides[1] +
                     query * e.mask_strides[2] + key * e.mask_strides[3];
  if (e.mask_kind == MaskKind::kBool)
    return static_cast<const bool*>(e.mask)[at] ? 0.0f : -INFINITY;
  return to_float(static_cast<const T*>(e.mask)[at]) * kLog2E;
}

// The mask's addend of a key whatever the query; 0 where it asks for the query.
template <typename T>
__device__ inline float key_bias(const AttentionExtent& e, const Head& head, int key) {
  const bool has = e.mask_kind != MaskKind::kNone && e.mask_strides[2] == 0 && key < e.mask_keys;
  return has ? mask_value<T>(e, head, 0, key) : 0.0f;
}

// A score in base 2 with its mask; -infinity where it is not seen.
template <typename T>
__device__ inline float seen(const AttentionExtent& e, const Head& head, int query, int key,
                             const Span& span, float score, float bias) {
  if (key < span.low || key >= span.high) return -INFINITY;
  if (e.mask_kind != MaskKind::kNone && e.mask_strides[2] != 0) {
    bias = mask_value<T>(e, head, query, key);
  }
  return bias == -INFINITY ? bias : score + bias;
}

// The 64 (or 64 M) queries of a block and the keys that any of them sees. Blocks of the last
// queries come first: with causal masks they have the most to do.
struct QueryBlock {
  Head head;
  int first, low, high;
};
template <int kRows, int kKeys>
__device__ inline QueryBlock query_block(const AttentionExtent& e) {
  const int64_t tiles = (e.queries + kRows - 1) / kRows;
  QueryBlock b;
  b.head = head_of(e, blockIdx.x / tiles);
  b.first = static_cast<int>(tiles - 1 - blockIdx.x % tiles) * kRows;
  b.low = span_of(e, b.head.b, b.first).low / kKeys * kKeys;
  b.high = span_of(e, b.head.b, static_cast<int>(least(b.first + kRows, e.queries)) - 1).high;
  return b;
}

// Raw scores of a lane's queries (its first is `query`) and keys as scores in base 2, masked.
template <typename T, int M, int N>
__device__ inline void mask_scores(float (&s)[M][N][4], const AttentionExtent& e, const Head& head,
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
          if (!all) x = seen<T>(e, head, query + 16 * m + 8 * r, at, spans[m][r], x, bias);
        }
      }
    }
  }
}

// The four lanes of a row.
template <typename F>
__device__ inline float row_fold(float v, F f) {
  v = f(v, __shfl_xor_sync(kAllLanes, v, 1));
  return f(v, __shfl_xor_sync(kAllLanes, v, 2));
}

}  // namespace ofsdp::kernels::cuda
