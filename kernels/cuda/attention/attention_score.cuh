// The keys that a query of an attention sees, and what its mask adds to a score;
// kernels/cuda/attention/attention.h has the members.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

// The operands of a call, by their types.
template <typename T>
struct AttentionPointers {
  const T *q, *k, *v, *dy;
  T *y, *dq, *dk, *dv, *dmask;
  const float* statistics;  // [batch, heads, queries], read: log-sum-exp, in the natural base
  float *statistics_found, *delta;  // as many, written: log-sum-exp (null: not wanted), sum of p dp
};

template <typename T>
AttentionPointers<T> gradient_pointers(const AttentionExtent& e, const AttentionGradient& g) {
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
  if (g.statistics == nullptr) o.statistics_found = o.delta + e.batch * e.heads * e.queries;
  o.statistics = g.statistics != nullptr ? g.statistics : o.statistics_found;
  return o;
}

// Keys low .. high - 1 may be seen by a query; both grow with the query.
struct Range {
  int64_t low, high;
};
__device__ inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

__device__ inline Range range_of(const AttentionExtent& e, int64_t b, int64_t query) {
  const int64_t at = query + (e.lengths != nullptr ? e.lengths[b] - e.queries : e.offset);
  Range r{0, e.keys};
  if (e.lengths != nullptr) {
    if (e.lengths[b] < 0 || e.lengths[b] > e.keys) note(e.fault, e.lengths[b], e.keys);
    r.high = least(r.high, e.lengths[b]);
  }
  if (e.mask_kind != MaskKind::kNone) r.high = least(r.high, e.mask_keys);
  if (e.causal) r.high = least(r.high, at + 1);
  if (e.right >= 0) r.high = least(r.high, at + e.right + 1);
  if (e.left >= 0) r.low = most(0, at - e.left);
  r.high = most(r.high, 0);
  r.low = least(r.low, r.high);
  return r;
}

// The head of a query and of its keys.
struct Head {
  int64_t b, h, kv;
};
__device__ inline Head head_of(const AttentionExtent& e, int64_t item) {
  const int64_t h = item % e.heads;
  return {item / e.heads, h, h / (e.heads / e.kv_heads)};
}

__device__ inline float capped(const AttentionExtent& e, float raw) {
  return e.softcap > 0 ? e.softcap * tanhf(raw / e.softcap) : raw;
}

// A capped score with its mask; -infinity where it is not seen.
template <typename T>
__device__ inline float masked(const AttentionExtent& e, const Head& head, int64_t query,
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

// The log-sum-exp of a query whose maximum and sum of e^(score - maximum) these are.
__device__ inline float log_sum_exp(float max, float sum) {
  return sum == 0 ? INFINITY : max + logf(sum);
}

}  // namespace ofsdp::kernels::cuda
