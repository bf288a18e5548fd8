// Losses of class labels as their kernels see them: the operands by label, and the formulas of one
// label (kernels/ops/loss/class_loss.h). The separate and the joined kernels share them, and with
// them the bits.
#pragma once

#include <type_traits>

#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/norm/online_softmax.cuh"

namespace ofsdp::kernels::cuda {

inline constexpr int kLossAdders = 1024;         // threads of a block that adds up labels
inline constexpr int64_t kLabelsOfBlock = 4096;  // labels that it adds up
inline constexpr int64_t kWarpClasses = 1024;    // up to so many a warp has a label,
inline constexpr int64_t kSmallBlockClasses =
    8192;  // up to so many a block of 256, else one of 512

inline int64_t label_blocks(int64_t labels) {
  return labels <= kLabelsOfBlock ? 1 : blocks_for(labels, kLabelsOfBlock);
}

// CrossEntropy with the number of labels, and its scratch.
struct Labels : CrossEntropy {
  int64_t count, row;  // row: elements from one label's scores to the next, inner being 1
  double* totals;      // 1 / sum of the weights of kept labels, or 1; sum of all class weights
  double* losses;      // of each label
  double* parts;       // of each block of labels

  Labels(const CrossEntropy& c, void* scratch)
      : CrossEntropy(c),
        count(c.samples * c.inner),
        row(c.pitch == 0 ? c.classes : c.pitch),
        totals(static_cast<double*>(scratch)),
        losses(totals + 2),
        parts(losses + count) {}

  __device__ int64_t first(int64_t i) const { return i / inner * classes * inner + i % inner; }
  // -1: ignored. One that is out of range is noted and counts as class 0.
  __device__ int64_t label(int64_t i) const {
    const int64_t label = label_dtype == DType::kInt64 ? static_cast<const int64_t*>(labels)[i]
                                                       : static_cast<const int32_t*>(labels)[i];
    if (ignores && label == ignore_index) return -1;
    if (label >= 0 && label < classes) return label;
    note(fault, label, classes);
    return 0;
  }
  template <typename T>
  __device__ double weight(int64_t c) const {
    return weights == nullptr ? 1.0
                              : static_cast<double>(to_float(static_cast<const T*>(weights)[c]));
  }
};

// Log-probability of a score: score - max - log(sum).
struct Normalizer {
  float max = 0, log = 0;
  __device__ float operator()(float score) const { return (score - max) - log; }
};

__device__ inline Normalizer normalizer_of(const OnlineSoftmax& all) {
  return {all.max, logf(all.sum)};
}

template <typename T>
__device__ inline double label_loss(const Labels& v, int64_t label, float log_prob,
                                    double spread_sum) {
  if (label < 0) return 0;
  const double hit = -(1 - v.smoothing) * v.weight<T>(label) * static_cast<double>(log_prob);
  return hit - v.smoothing / static_cast<double>(v.classes) * spread_sum;
}

__device__ inline void put_loss(void* loss, DType dtype, int64_t i, double value) {
  const float v = static_cast<float>(value);
  if (dtype == DType::kFloat16) static_cast<__half*>(loss)[i] = Stored<__half>::from(v);
  if (dtype == DType::kBFloat16)
    static_cast<__nv_bfloat16*>(loss)[i] = Stored<__nv_bfloat16>::from(v);
  if (dtype == DType::kFloat32) static_cast<float*>(loss)[i] = v;
}
__device__ inline float get_loss(const void* loss, DType dtype, int64_t i) {
  if (dtype == DType::kFloat16) return to_float(static_cast<const __half*>(loss)[i]);
  if (dtype == DType::kBFloat16) return to_float(static_cast<const __nv_bfloat16*>(loss)[i]);
  return static_cast<const float*>(loss)[i];
}

// The gradient of one label: diff_c = e^(score_c - max - log) chance - (c == label ? hit : 0)
// - spread w_c; 0 where the label is -1. Without a softmax (soft) its first term is none.
struct Slope {
  Normalizer norm;
  float chance = 0, hit = 0, spread = 0;
  int64_t label = -1;
  bool soft = false;
};

template <typename T>
__device__ inline Slope slope_of(const Labels& v, int64_t label, float diff_loss,
                                 const Normalizer& norm) {
  Slope s;
  if (label < 0 || v.totals[0] == 0) return s;
  s.label = label;
  s.norm = norm;
  const double factor = v.totals[0] * static_cast<double>(diff_loss);
  const double hit = (1 - v.smoothing) * v.weight<T>(label);
  const double spread = v.smoothing / static_cast<double>(v.classes);
  s.soft = v.through_softmax;
  s.chance = static_cast<float>(factor * (hit + spread * v.totals[1]));
  s.hit = static_cast<float>(factor * hit);
  s.spread = static_cast<float>(factor * spread);
  return s;
}

// Puts the gradients of scores c .. c + N - 1 in the place of these. Smooth: whether there may be
// label smoothing. What is the same for the whole row is asked once a pack, not of each score: with
// branches between them, scores took 22 instructions each for 7.
template <typename T, bool Smooth, int N>
__device__ inline void to_slopes(const Labels& v, const Slope& s, int64_t c, float* d) {
  if (s.soft) {
    unrolled<N>([&](int k) { d[k] = exp_for<T>(s.norm(d[k])) * s.chance; });
  } else {
    unrolled<N>([&](int k) { d[k] = 0; });
  }
  if (Smooth && s.spread != 0.0f) {
    unrolled<N>([&](int k) { d[k] -= s.spread * static_cast<float>(v.weight<T>(c + k)); });
  }
  if (static_cast<uint64_t>(s.label - c) < N) {
    unrolled<N>([&](int k) {
      if (c + k == s.label) d[k] -= s.hit;
    });
  }
}

// Returns the softmax as a gradient knows it that comes later: from float32 scores the
// log-probabilities were kept, from 16-bit ones the logarithm of the sum, in one number.
template <typename T>
__device__ inline Normalizer kept_of(const Normalizer& norm) {
  return std::is_same_v<T, float> ? norm : Normalizer{norm.max + norm.log, 0};
}

}  // namespace ofsdp::kernels::cuda
