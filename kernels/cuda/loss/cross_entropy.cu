// A label belongs to a group of threads (a warp up to 1024 classes, else a block) where its classes
// lie side by side, to one thread where they are strided. Losses go to scratch in double; one block
// adds them, and the weights of kept labels, in a fixed order. scratch: double totals[4] = {1 / sum
// of weights or 1, sum of all class weights}, then a double a label.
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/norm/online_softmax.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kTotals = 4;
constexpr int kAdders = 1024;

struct View : CrossEntropy {
  int64_t count;

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
};

template <typename T>
__device__ inline double weight_of(const View& v, int64_t c) {
  return v.weights == nullptr ? 1.0
                              : static_cast<double>(to_float(static_cast<const T*>(v.weights)[c]));
}

// Log-probability of a score: score - max - log(sum).
struct Normalizer {
  float max, log;
  __device__ float operator()(float score) const { return (score - max) - log; }
};

template <typename T>
__device__ inline double loss_of(const View& v, int64_t label, float log_prob, double spread_sum) {
  if (label < 0) return 0;
  const double hit = -(1 - v.smoothing) * weight_of<T>(v, label) * static_cast<double>(log_prob);
  return hit - v.smoothing / static_cast<double>(v.classes) * spread_sum;
}

__device__ inline double* losses_of(const CrossEntropyForward& f) {
  return static_cast<double*>(f.scratch) + kTotals;
}

// G threads a label; classes side by side.
template <typename T, int G>
OFSDP_CUDA_KERNEL forward_rows(View v, CrossEntropyForward f, bool packs) {
  __shared__ float spare[kThreads / kWarp];
  __shared__ double wide[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool there = i < v.count;
  const int64_t n = there ? v.classes : 0;
  const T* row = static_cast<const T*>(f.scores) + (there ? i : 0) * v.classes;
  T* const log_prob = static_cast<T*>(f.log_prob);  // may be the scores: they are read first
  const int64_t label = there && lane == 0 ? v.label(i) : -1;
  const float score = label < 0 ? 0.0f : to_float(row[label]);
  if (log_prob == static_cast<const T*>(f.scores)) __syncthreads();
  Normalizer norm{0, 0};
  if (v.through_softmax) {
    const OnlineSoftmax all = online_softmax<G>(row, n, lane, spare);
    norm = {all.max, logf(all.sum)};
  }
  double spread = 0;
  if (log_prob != nullptr || v.smoothing != 0) {
    walk_row(row, n, packs, lane, G, [&]<int N>(int64_t c) {
      float p[N];
      load<N>(row + c, p);
      unrolled<N>([&](int k) {
        p[k] = norm(p[k]);
        if (v.smoothing != 0) spread += weight_of<T>(v, c + k) * static_cast<double>(p[k]);
      });
      if (log_prob != nullptr) store<N>(log_prob + i * v.classes + c, p);
    });
    spread = group_fold<G>(spread, Add{}, wide);
  }
  if (!there || lane != 0) return;
  losses_of(f)[i] = loss_of<T>(v, label, label < 0 ? 0.0f : norm(score), spread);
  if (f.lse != nullptr) f.lse[i] = norm.max + norm.log;
}

template <typename T>
OFSDP_CUDA_KERNEL forward_columns(View v, CrossEntropyForward f) {
  OFSDP_CUDA_ITEM(i, v.count);
  const int64_t first = v.first(i);
  const T* const scores = static_cast<const T*>(f.scores);
  T* const log_prob = static_cast<T*>(f.log_prob);
  Normalizer norm{0, 0};
  if (v.through_softmax) {
    OnlineSoftmax all;
    for (int64_t c = 0; c < v.classes; ++c) {
      const float score = to_float(scores[first + c * v.inner]);
      all.add<1>(&score);
    }
    norm = {all.max, logf(all.sum)};
  }
  const int64_t label = v.label(i);
  const float chosen = label < 0 ? 0.0f : norm(to_float(scores[first + label * v.inner]));
  double spread = 0;
  for (int64_t c = 0; c < v.classes && (log_prob != nullptr || v.smoothing != 0); ++c) {
    const float p = norm(to_float(scores[first + c * v.inner]));
    spread += v.smoothing == 0 ? 0.0 : weight_of<T>(v, c) * static_cast<double>(p);
    if (log_prob != nullptr) log_prob[first + c * v.inner] = Stored<T>::from(p);
  }
  losses_of(f)[i] = loss_of<T>(v, label, chosen, spread);
  if (f.lse != nullptr) f.lse[i] = norm.max + norm.log;
}

// One block: f(i) of 0 .. n - 1, thread t those t, t + kAdders, ...
template <typename F>
__device__ inline double total_of(int64_t n, double* spare, const F& f) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kAdders) sum += f(i);
  return group_fold<kAdders>(sum, Add{}, spare);
}

template <typename T>
__device__ inline double mean_scale(const View& v, double* spare) {
  if (v.reduction != LossReduction::kMean) return 1;
  const double kept = total_of(v.count, spare, [&](int64_t i) {
    const int64_t label = v.label(i);
    return label < 0 ? 0.0 : weight_of<T>(v, label);
  });
  return kept == 0 ? 0.0 : 1 / kept;
}

__device__ inline void put_loss(const CrossEntropyForward& f, int64_t i, double value) {
  const float v = static_cast<float>(value);
  if (f.loss_dtype == DType::kFloat16) static_cast<__half*>(f.loss)[i] = Stored<__half>::from(v);
  if (f.loss_dtype == DType::kBFloat16)
    static_cast<__nv_bfloat16*>(f.loss)[i] = Stored<__nv_bfloat16>::from(v);
  if (f.loss_dtype == DType::kFloat32) static_cast<float*>(f.loss)[i] = v;
}
__device__ inline float get_loss(const void* loss, DType dtype, int64_t i) {
  if (dtype == DType::kFloat16) return to_float(static_cast<const __half*>(loss)[i]);
  if (dtype == DType::kBFloat16) return to_float(static_cast<const __nv_bfloat16*>(loss)[i]);
  return static_cast<const float*>(loss)[i];
}

template <typename T>
__global__ void __launch_bounds__(kAdders) add_losses(View v, CrossEntropyForward f) {
  __shared__ double spare[kAdders / kWarp];
  const double* const losses = losses_of(f);
  if (v.reduction == LossReduction::kNone) {
    for (int64_t i = threadIdx.x; i < v.count; i += kAdders) put_loss(f, i, losses[i]);
    return;
  }
  const double sum = total_of(v.count, spare, [&](int64_t i) { return losses[i]; });
  const double scale = mean_scale<T>(v, spare);
  if (threadIdx.x == 0) put_loss(f, 0, scale == 0 ? 0.0 : sum * scale);
}

// totals: what a label's gradient is multiplied by, and the sum of all class weights.
template <typename T>
__global__ void __launch_bounds__(kAdders) prepare_gradient(View v, double* totals) {
  __shared__ double spare[kAdders / kWarp];
  const double scale = mean_scale<T>(v, spare);
  const double all =
      v.smoothing == 0 ? 0.0
                       : total_of(v.classes, spare, [&](int64_t c) { return weight_of<T>(v, c); });
  if (threadIdx.x == 0) {
    totals[0] = scale;
    totals[1] = all;
  }
}

// The gradient of one label: diff_c = e^p_c chance - (c == label ? hit : 0) - spread w_c.
struct Slope {
  float less = 0, chance = 0, hit = 0, spread = 0;
  int64_t label = -1;
};

template <typename T>
__device__ inline Slope slope_of(const View& v, const CrossEntropyBackward& b, int64_t i) {
  const double* const totals = static_cast<const double*>(b.scratch);
  Slope s;
  s.label = v.label(i);
  if (s.label < 0 || totals[0] == 0) {
    s.label = -1;
    return s;
  }
  const int64_t at = v.reduction == LossReduction::kNone ? i : 0;
  const double factor = totals[0] * static_cast<double>(get_loss(b.diff_loss, b.loss_dtype, at));
  const double hit = (1 - v.smoothing) * weight_of<T>(v, s.label);
  const double spread = v.smoothing / static_cast<double>(v.classes);
  s.less = b.lse == nullptr ? 0.0f : b.lse[i];
  s.chance = v.through_softmax ? static_cast<float>(factor * (hit + spread * totals[1])) : 0.0f;
  s.hit = static_cast<float>(factor * hit);
  s.spread = static_cast<float>(factor * spread);
  return s;
}

template <typename T>
__device__ inline float gradient(const View& v, const Slope& s, float score, int64_t c) {
  if (s.label < 0) return 0;
  float d = v.through_softmax ? expf(score - s.less) * s.chance : 0.0f;
  if (s.spread != 0.0f) d -= s.spread * static_cast<float>(weight_of<T>(v, c));
  return c == s.label ? d - s.hit : d;
}

template <typename T, int G>
OFSDP_CUDA_KERNEL backward_rows(View v, CrossEntropyBackward b, bool packs) {
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  if (i >= v.count) return;
  const Slope s = slope_of<T>(v, b, i);
  const T* row = static_cast<const T*>(b.scores) + i * v.classes;
  T* to = static_cast<T*>(b.diff_scores) + i * v.classes;
  walk_row(row, v.classes, packs, lane, G, [&]<int N>(int64_t c) {
    float d[N];
    load<N>(row + c, d);
    unrolled<N>([&](int k) { d[k] = gradient<T>(v, s, d[k], c + k); });
    store<N>(to + c, d);
  });
}

template <typename T>
OFSDP_CUDA_KERNEL backward_columns(View v, CrossEntropyBackward b) {
  OFSDP_CUDA_ITEM(i, v.count);
  const Slope s = slope_of<T>(v, b, i);
  const int64_t first = v.first(i);
  for (int64_t c = 0; c < v.classes; ++c) {
    const int64_t at = first + c * v.inner;
    const float score = to_float(static_cast<const T*>(b.scores)[at]);
    static_cast<T*>(b.diff_scores)[at] = Stored<T>::from(gradient<T>(v, s, score, c));
  }
}

template <typename T>
cudaError_t forward_as(const CrossEntropy& c, const CrossEntropyForward& f, cudaStream_t stream) {
  const View v{c, c.samples * c.inner};
  if (c.inner > 1) {
    OFSDP_CUDA_TRY(over(v.count, stream, forward_columns<T>, v, f));
  } else {
    const bool packs = f.log_prob == nullptr || same_alignment(f.scores, f.log_prob);
    const bool warps = c.classes <= 1024;
    OFSDP_CUDA_TRY(
        launch_blocks(stream, blocks_for(v.count, warps ? kThreads / kWarp : 1), kThreads,
                      warps ? forward_rows<T, kWarp> : forward_rows<T, kThreads>, v, f, packs));
  }
  return launch_blocks(stream, 1, kAdders, add_losses<T>, v, f);
}

template <typename T>
cudaError_t backward_as(const CrossEntropy& c, const CrossEntropyBackward& b, cudaStream_t stream) {
  const View v{c, c.samples * c.inner};
  OFSDP_CUDA_TRY(launch_blocks(stream, 1, kAdders, prepare_gradient<T>, v, b.scratch));
  if (c.inner > 1) return over(v.count, stream, backward_columns<T>, v, b);
  const bool warps = c.classes <= 1024;
  return launch_blocks(stream, blocks_for(v.count, warps ? kThreads / kWarp : 1), kThreads,
                       warps ? backward_rows<T, kWarp> : backward_rows<T, kThreads>, v, b,
                       same_alignment(b.scores, b.diff_scores));
}

bool known(const CrossEntropy& c, DType loss) {
  const bool labels = c.label_dtype == DType::kInt32 || c.label_dtype == DType::kInt64;
  return labels && (loss == DType::kFloat32 || loss == DType::kFloat16 || loss == DType::kBFloat16);
}

}  // namespace

size_t cross_entropy_scratch(const CrossEntropy& c) {
  return static_cast<size_t>(kTotals + c.samples * c.inner) * sizeof(double);
}

cudaError_t cross_entropy_forward(const CrossEntropy& c, const CrossEntropyForward& f,
                                  cudaStream_t stream) {
  if (!known(c, f.loss_dtype)) return cudaErrorNotSupported;
  return with_float(c.dtype, [&]<typename T>(T) { return forward_as<T>(c, f, stream); });
}

cudaError_t cross_entropy_backward(const CrossEntropy& c, const CrossEntropyBackward& b,
                                   cudaStream_t stream) {
  if (!known(c, b.loss_dtype)) return cudaErrorNotSupported;
  return with_float(c.dtype, [&]<typename T>(T) { return backward_as<T>(c, b, stream); });
}

}  // namespace ofsdp::kernels::cuda
