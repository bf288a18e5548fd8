// Device helpers for both attention kernels: typed operands, visible keys per query, masked scores.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

// Typed operands for one call.
template <typename T>
struct AttentionPointers {
  const T *q, *k, *v, *dy;
  T *y, *dq, *dk, *dv, *dmask;
  const float* statistics;  // input [batch, heads, queries]: natural log-sum-exp
  // Outputs of the same shape: log-sum-exp, or null if `statistics` is given; per row, the sum of
  // probability times its gradient.
  float *statistics_out, *delta;
};

template <typename T>
AttentionPointers<T> gradient_pointers(const AttentionParams& e, const AttentionGradient& g) {
  AttentionPointers<T> o{};
  o.q = static_cast<const T*>(g.q);
  o.k = static_cast<const T*>(g.k);
  o.v = static_cast<const T*>(g.v);
  o.dy = static_cast<const T*>(g.dy);
  o.dq = static_cast<T*>(g.dq);
  o.dk = static_cast<T*>(g.dk);
  o.dv = static_cast<T*>(g.dv);
  o.dmask = static_cast<T*>(g.dmask);
  o.delta = static_cast<float*>(g.scratch);
  if (g.statistics == nullptr) o.statistics_out = o.delta + e.batch * e.heads * e.queries;
  o.statistics = g.statistics != nullptr ? g.statistics : o.statistics_out;
  return o;
}

// Visible keys low .. high - 1. Both bounds grow with the query.
struct Range {
  int64_t low, high;
};
__device__ inline int64_t min_index(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ inline int64_t max_index(int64_t a, int64_t b) { return a > b ? a : b; }

// Applies lengths, mask size, causality and window. Reports invalid lengths.
__device__ inline Range key_range(const AttentionParams& e, int64_t b, int64_t query) {
  const int64_t at = query + (e.lengths != nullptr ? e.lengths[b] - e.queries : e.offset);
  Range r{0, e.keys};
  if (e.lengths != nullptr) {
    if (e.lengths[b] < 0 || e.lengths[b] > e.keys) note(e.fault, e.lengths[b], e.keys);
    r.high = min_index(r.high, e.lengths[b]);
  }
  if (e.mask_kind != MaskKind::kNone) r.high = min_index(r.high, e.mask_keys);
  if (e.causal) r.high = min_index(r.high, at + 1);
  if (e.right >= 0) r.high = min_index(r.high, at + e.right + 1);
  if (e.left >= 0) r.low = max_index(0, at - e.left);
  r.high = max_index(r.high, 0);
  r.low = min_index(r.low, r.high);
  return r;
}

// Batch, query head and key head.
struct Head {
  int64_t b, h, kv;
};
// item = b * heads + h.
__device__ inline Head find_head(const AttentionParams& e, int64_t item) {
  const int64_t h = item % e.heads;
  return {item / e.heads, h, h / (e.heads / e.kv_heads)};
}

// Whether the sample's outputs are to be computed.
__device__ inline bool is_wanted(const AttentionParams& e, int64_t b) {
  return e.wanted == nullptr || e.wanted[b] != 0;
}

__device__ inline float apply_softcap(const AttentionParams& e, float raw) {
  return e.softcap > 0 ? e.softcap * tanhf(raw / e.softcap) : raw;
}

// Returns `score`, which apply_softcap has capped, plus the mask; -infinity if the key is not
// visible.
template <typename T>
__device__ inline float masked(const AttentionParams& e, const Head& head, int64_t query,
                               int64_t key, const Range& r, float score) {
  if (key < r.low || key >= r.high) return -INFINITY;
  if (e.mask_kind == MaskKind::kNone) return score;
  const int64_t at = head.b * e.mask_strides[0] + head.h * e.mask_strides[1] +
                     query * e.mask_strides[2] + key * e.mask_strides[3];
  if (e.mask_kind == MaskKind::kBool)
    return static_cast<const bool*>(e.mask)[at] ? score : -INFINITY;
  const float m = to_float(static_cast<const T*>(e.mask)[at]);
  return m == -INFINITY ? -INFINITY : score + m;
}

// Returns the log-sum-exp from the running maximum and the sum of e^(score - max). If all keys are
// masked it is infinity, so that e^(score - log_sum_exp), the probability, is 0.
__device__ inline float log_sum_exp(float max, float sum) {
  return sum == 0 ? INFINITY : max + logf(sum);
}

}  // namespace ofsdp::kernels::cuda
