// Cross entropy of class labels. If a label's classes are contiguous, a warp or block processes it;
// if they are strided, one thread. Label losses go to scratch in double. Blocks sum 4096 labels
// (losses, and weights of labels that are not ignored), and one block sums the block results,
// always in label order.
//
// [Note: rows from the cache] A row of scores is read twice: for softmax, then for the result.
// Blocks of 512 threads keep two rows per multiprocessor in flight. For a vocabulary of 50257 in 16
// bits that is 27 MB, below the 50 MB of an H100's L2 cache, so the second read may hit. Blocks of
// 256 would keep twice as many.
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/norm/rows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// --- Labels: operands and formulas per label (kernels/ops/loss/class_loss.h). The separate and the
// joined kernels share them and therefore agree bit for bit. ---

constexpr int kSumThreads = 1024;             // block size for sums over labels
constexpr int64_t kLabelsPerBlock = 4096;     // labels per block
constexpr int64_t kWarpClasses = 1024;        // up to here a warp per label,
constexpr int64_t kSmallBlockClasses = 8192;  // up to here a block of 256, beyond it 512

int64_t label_blocks(int64_t labels) {
  return labels <= kLabelsPerBlock ? 1 : blocks_for(labels, kLabelsPerBlock);
}

// CrossEntropy plus label count and scratch pointers.
struct Labels : CrossEntropy {
  int64_t count, row;  // row: elements between score rows if inner is 1
  double* totals;      // [0]: 1 / summed label weights, or 1; [1]: sum of class weights
  double* losses;      // per label
  double* parts;       // per block of labels

  Labels(const CrossEntropy& c, void* scratch)
      : CrossEntropy(c),
        count(c.samples * c.inner),
        row(c.pitch == 0 ? c.classes : c.pitch),
        totals(static_cast<double*>(scratch)),
        losses(totals + 2),
        parts(losses + count) {}

  __device__ int64_t first(int64_t i) const { return i / inner * classes * inner + i % inner; }
  // Returns -1 if ignored. Reports labels out of range, which count as class 0.
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

// Log-probability: score - max - log(sum).
struct Normalizer {
  float max = 0, log = 0;
  __device__ float operator()(float score) const { return (score - max) - log; }
};

__device__ inline Normalizer make_normalizer(const OnlineSoftmax& all) {
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

// Gradient of one label: diff_c = e^(score_c - max - log) chance - (c == label ? hit : 0) - spread
// w_c. 0 if label is -1. The first term is omitted unless `soft`.
struct LabelGrad {
  Normalizer norm;
  float chance = 0, hit = 0, spread = 0;
  int64_t label = -1;
  bool soft = false;
};

template <typename T>
__device__ inline LabelGrad make_label_grad(const Labels& v, int64_t label, float diff_loss,
                                            const Normalizer& norm) {
  LabelGrad s;
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

// Replaces scores c .. c + N - 1 by gradients. Smooth: label smoothing may be on. Conditions that
// are uniform in a row are tested once per pack: with branches per element, a score took 22
// instructions instead of 7.
template <typename T, bool Smooth, int N>
__device__ inline void to_score_grads(const Labels& v, const LabelGrad& s, int64_t c, float* d) {
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

// Returns the softmax as a separate backward pass would see it: log-probabilities are saved for
// float32, one lse for 16-bit scores.
template <typename T>
__device__ inline Normalizer saved_normalizer(const Normalizer& norm) {
  return std::is_same_v<T, float> ? norm : Normalizer{norm.max + norm.log, 0};
}

template <int G>
constexpr int kRowThreads = G > kThreads ? G : kThreads;
template <int G>
constexpr int kRowBlocks = G > kThreads ? 2 : 1;  // minimum per multiprocessor; 3 would spill
template <int G>
constexpr int kLabelsAtOnce = kRowThreads<G> / G;

// --- Totals ---

// Sums f(i) for begin <= i < end in one block.
template <typename F>
__device__ inline double block_sum(int64_t begin, int64_t end, double* spare, const F& f) {
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kSumThreads) sum += f(i);
  return group_reduce<kSumThreads>(sum, Add{}, spare);
}

// Sums f(i) over this block's labels.
template <typename F>
__device__ inline double labels_sum(const Labels& v, double* spare, const F& f) {
  const int64_t begin = int64_t{blockIdx.x} * kLabelsPerBlock;
  const int64_t end = begin + kLabelsPerBlock < v.count ? begin + kLabelsPerBlock : v.count;
  return block_sum(begin, end, spare, f);
}

// Sums all block results in one block.
__device__ inline double parts_sum(const Labels& v, int64_t blocks, double* spare) {
  return block_sum(0, blocks, spare, [&](int64_t i) { return v.parts[i]; });
}

template <typename T>
__device__ inline void put_totals(const Labels& v, double kept, double* spare) {
  const bool mean = v.reduction == LossReduction::kMean;
  const double all =
      v.smoothing == 0 ? 0.0
                       : block_sum(0, v.classes, spare, [&](int64_t c) { return v.weight<T>(c); });
  if (threadIdx.x != 0) return;
  v.totals[0] = !mean ? 1.0 : kept == 0 ? 0.0 : 1 / kept;
  v.totals[1] = all;
}

// Each block sums the label weights of its 4096 labels for the mean, and stores the totals if it is
// the only block.
template <typename T>
__global__ void __launch_bounds__(kSumThreads) count_labels(Labels v) {
  __shared__ double spare[kSumThreads / kWarp];
  double kept = 0;
  if (v.reduction == LossReduction::kMean) {
    kept = labels_sum(v, spare, [&](int64_t i) {
      const int64_t label = v.label(i);
      return label < 0 ? 0.0 : v.weight<T>(label);
    });
  }
  if (gridDim.x == 1) return put_totals<T>(v, kept, spare);
  if (threadIdx.x == 0) v.parts[blockIdx.x] = kept;
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads) join_counts(Labels v, int64_t blocks) {
  __shared__ double spare[kSumThreads / kWarp];
  put_totals<T>(v, parts_sum(v, blocks, spare), spare);
}

__device__ inline void put_sum(const Labels& v, void* loss, DType dtype, double sum) {
  const double scale = v.totals[0];
  if (threadIdx.x == 0) put_loss(loss, dtype, 0, scale == 0 ? 0.0 : sum * scale);
}

__global__ void __launch_bounds__(kSumThreads) sum_losses(Labels v, void* loss, DType dtype) {
  __shared__ double spare[kSumThreads / kWarp];
  const double sum = labels_sum(v, spare, [&](int64_t i) { return v.losses[i]; });
  if (gridDim.x == 1) return put_sum(v, loss, dtype, sum);
  if (threadIdx.x == 0) v.parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    join_losses(Labels v, int64_t blocks, void* loss, DType dtype) {
  __shared__ double spare[kSumThreads / kWarp];
  put_sum(v, loss, dtype, parts_sum(v, blocks, spare));
}

// --- Rows: G threads per label, contiguous classes ---

// Online softmax over the row, then label loss, log_prob and smoothing. Lane 0 of each group stores
// the loss.
template <typename T, int G>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    forward_rows(Labels v, CrossEntropyForward f, bool packs) {
  __shared__ float spare[kRowThreads<G> / kWarp];
  __shared__ double wide[kRowThreads<G> / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  const bool there = i < v.count;
  const int64_t n = there ? v.classes : 0;
  const T* row = static_cast<const T*>(f.scores) + (there ? i : 0) * v.row;
  T* const log_prob = static_cast<T*>(f.log_prob);  // may alias scores, which are read first
  const int64_t label = there && lane == 0 ? v.label(i) : -1;
  const float score = label < 0 ? 0.0f : to_float(row[label]);
  if (log_prob == static_cast<const T*>(f.scores)) __syncthreads();
  Normalizer norm;
  if (v.through_softmax) norm = make_normalizer(online_softmax<G>(row, n, lane, spare));
  double spread = 0;
  if (log_prob != nullptr || v.smoothing != 0) {
    for_row_packs(row, n, packs, lane, G, [&]<int N>(int64_t c) {
      float p[N];
      load<N>(row + c, p);
      unrolled<N>([&](int k) {
        p[k] = norm(p[k]);
        if (v.smoothing != 0) spread += v.weight<T>(c + k) * static_cast<double>(p[k]);
      });
      if (log_prob != nullptr) store<N>(log_prob + i * v.row + c, p);
    });
    spread = group_reduce<G>(spread, Add{}, wide);
  }
  if (!there || lane != 0) return;
  const double loss = label_loss<T>(v, label, label < 0 ? 0.0f : norm(score), spread);
  v.losses[i] = loss;
  if (v.reduction == LossReduction::kNone) put_loss(f.loss, f.loss_dtype, i, loss);
  if (f.lse != nullptr) f.lse[i] = norm.max + norm.log;
}

// Each lane turns its packs of scores into gradients.
template <typename T, int G>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    backward_rows(Labels v, CrossEntropyBackward b, bool packs) {
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  if (i >= v.count) return;
  const int64_t at = v.reduction == LossReduction::kNone ? i : 0;
  const Normalizer norm{b.lse == nullptr ? 0.0f : b.lse[i], 0};
  const LabelGrad s =
      make_label_grad<T>(v, v.label(i), get_loss(b.diff_loss, b.loss_dtype, at), norm);
  const T* row = static_cast<const T*>(b.scores) + i * v.row;
  T* to = static_cast<T*>(b.diff_scores) + i * v.row;
  for_row_values(row, v.classes, packs, lane, G, [&]<int N>(int64_t c, float* d) {
    to_score_grads<T, true, N>(v, s, c, d);
    store<N>(to + c, d);
  });
}

// Forward and backward fused, bit for bit as forward_rows and backward_rows. Smooth: label
// smoothing, which takes more registers.
template <typename T, int G, bool Smooth>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    joined_rows(Labels v, CrossEntropyJoined j, bool packs) {
  __shared__ float spare[kRowThreads<G> / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  const bool there = i < v.count;
  const int64_t n = there ? v.classes : 0;
  const T* row = static_cast<const T*>(j.scores) + (there ? i : 0) * v.row;
  T* const to = static_cast<T*>(j.diff_scores) + (there ? i : 0) * v.row;  // may alias row
  const int64_t label = there ? v.label(i) : -1;
  const float score = label < 0 || lane != 0 ? 0.0f : to_float(row[label]);
  __syncthreads();  // score must be read before any thread writes
  Normalizer norm;
  if (label >= 0) norm = make_normalizer(online_softmax<G>(row, n, lane, spare));
  const LabelGrad s = make_label_grad<T>(v, label, *j.diff_loss, saved_normalizer<T>(norm));
  double spread = 0;
  for_row_values<Smooth ? 2 : 4>(row, n, packs, lane, G, [&]<int N>(int64_t c, float* d) {
    if (Smooth && label >= 0) {
      unrolled<N>([&](int k) { spread += v.weight<T>(c + k) * static_cast<double>(norm(d[k])); });
    }
    to_score_grads<T, Smooth, N>(v, s, c, d);
    store<N>(to + c, d);
  });
  if constexpr (Smooth) {
    __shared__ double wide[kRowThreads<G> / kWarp];
    spread = group_reduce<G>(spread, Add{}, wide);
  }
  if (there && lane == 0) v.losses[i] = label_loss<T>(v, label, norm(score), spread);
}

// --- Columns: one thread per label, strided classes ---

template <typename T>
OFSDP_CUDA_KERNEL forward_columns(Labels v, CrossEntropyForward f) {
  OFSDP_CUDA_ITEM(i, v.count);
  const int64_t first = v.first(i);
  const T* const scores = static_cast<const T*>(f.scores);
  T* const log_prob = static_cast<T*>(f.log_prob);
  Normalizer norm;
  if (v.through_softmax) {
    OnlineSoftmax all;
    for (int64_t c = 0; c < v.classes; ++c) {
      const float score = to_float(scores[first + c * v.inner]);
      all.add<1>(&score);
    }
    norm = make_normalizer(all);
  }
  const int64_t label = v.label(i);
  const float chosen = label < 0 ? 0.0f : norm(to_float(scores[first + label * v.inner]));
  double spread = 0;
  for (int64_t c = 0; c < v.classes && (log_prob != nullptr || v.smoothing != 0); ++c) {
    const float p = norm(to_float(scores[first + c * v.inner]));
    spread += v.smoothing == 0 ? 0.0 : v.weight<T>(c) * static_cast<double>(p);
    if (log_prob != nullptr) log_prob[first + c * v.inner] = Stored<T>::from(p);
  }
  const double loss = label_loss<T>(v, label, chosen, spread);
  v.losses[i] = loss;
  if (v.reduction == LossReduction::kNone) put_loss(f.loss, f.loss_dtype, i, loss);
  if (f.lse != nullptr) f.lse[i] = norm.max + norm.log;
}

template <typename T>
OFSDP_CUDA_KERNEL backward_columns(Labels v, CrossEntropyBackward b) {
  OFSDP_CUDA_ITEM(i, v.count);
  const int64_t at = v.reduction == LossReduction::kNone ? i : 0;
  const Normalizer norm{b.lse == nullptr ? 0.0f : b.lse[i], 0};
  const LabelGrad s =
      make_label_grad<T>(v, v.label(i), get_loss(b.diff_loss, b.loss_dtype, at), norm);
  const int64_t first = v.first(i);
  for (int64_t c = 0; c < v.classes; ++c) {
    const int64_t place = first + c * v.inner;
    float d[1] = {to_float(static_cast<const T*>(b.scores)[place])};
    to_score_grads<T, true, 1>(v, s, c, d);
    static_cast<T*>(b.diff_scores)[place] = Stored<T>::from(d[0]);
  }
}

// --- Launches ---

template <typename T>
cudaError_t compute_totals(const Labels& v, cudaStream_t stream) {
  const int64_t blocks = v.reduction == LossReduction::kMean ? label_blocks(v.count) : 1;
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks, kSumThreads, count_labels<T>, v));
  if (blocks == 1) return cudaSuccess;
  return launch_blocks(stream, 1, kSumThreads, join_counts<T>, v, blocks);
}

cudaError_t compute_loss(const Labels& v, void* loss, DType dtype, cudaStream_t stream) {
  const int64_t blocks = label_blocks(v.count);
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks, kSumThreads, sum_losses, v, loss, dtype));
  if (blocks == 1) return cudaSuccess;
  return launch_blocks(stream, 1, kSumThreads, join_losses, v, blocks, loss, dtype);
}

// Calls f<G>(blocks, threads) with G threads per label, chosen by the class count.
template <typename F>
cudaError_t over_labels(const Labels& v, const F& f) {
  const auto of = [&]<int G>() {
    return f.template operator()<G>(blocks_for(v.count, kLabelsAtOnce<G>), kRowThreads<G>);
  };
  if (v.classes <= kWarpClasses) return of.template operator()<kWarp>();
  if (v.classes <= kSmallBlockClasses) return of.template operator()<kThreads>();
  return of.template operator()<2 * kThreads>();
}

template <typename T>
cudaError_t forward_as(const CrossEntropy& c, const CrossEntropyForward& f, cudaStream_t stream) {
  const Labels v(c, f.scratch);
  if (c.reduction != LossReduction::kNone) OFSDP_CUDA_TRY(compute_totals<T>(v, stream));
  if (c.inner > 1) {
    OFSDP_CUDA_TRY(over(v.count, stream, forward_columns<T>, v, f));
  } else {
    const bool packs = f.log_prob == nullptr || same_alignment(f.scores, f.log_prob);
    OFSDP_CUDA_TRY(over_labels(v, [&]<int G>(int64_t blocks, int threads) {
      return launch_blocks(stream, blocks, threads, forward_rows<T, G>, v, f, packs);
    }));
  }
  if (c.reduction == LossReduction::kNone) return cudaSuccess;
  return compute_loss(v, f.loss, f.loss_dtype, stream);
}

template <typename T>
cudaError_t backward_as(const CrossEntropy& c, const CrossEntropyBackward& b, cudaStream_t stream) {
  const Labels v(c, b.scratch);
  OFSDP_CUDA_TRY(compute_totals<T>(v, stream));
  if (c.inner > 1) return over(v.count, stream, backward_columns<T>, v, b);
  return over_labels(v, [&]<int G>(int64_t blocks, int threads) {
    return launch_blocks(stream, blocks, threads, backward_rows<T, G>, v, b,
                         same_alignment(b.scores, b.diff_scores));
  });
}

template <typename T>
cudaError_t joined_as(const CrossEntropy& c, const CrossEntropyJoined& j, cudaStream_t stream) {
  const Labels v(c, j.scratch);
  OFSDP_CUDA_TRY(compute_totals<T>(v, stream));
  OFSDP_CUDA_TRY(over_labels(v, [&]<int G>(int64_t blocks, int threads) {
    return launch_blocks(stream, blocks, threads,
                         c.smoothing == 0 ? joined_rows<T, G, false> : joined_rows<T, G, true>, v,
                         j, same_alignment(j.scores, j.diff_scores));
  }));
  return compute_loss(v, j.loss, DType::kFloat32, stream);
}

bool known(const CrossEntropy& c, DType loss) {
  const bool labels = c.label_dtype == DType::kInt32 || c.label_dtype == DType::kInt64;
  return labels && (c.inner == 1 || c.pitch == 0) && is_32_or_16_bit_float(loss);
}

}  // namespace

size_t cross_entropy_scratch(const CrossEntropy& c) {
  const int64_t labels = c.samples * c.inner;
  return static_cast<size_t>(2 + labels + label_blocks(labels)) * sizeof(double);
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

cudaError_t cross_entropy_joined(const CrossEntropy& c, const CrossEntropyJoined& j,
                                 cudaStream_t stream) {
  const bool joins = c.inner == 1 && c.through_softmax && c.reduction != LossReduction::kNone;
  if (!joins || !known(c, DType::kFloat32)) return cudaErrorNotSupported;
  return with_float(c.dtype, [&]<typename T>(T) { return joined_as<T>(c, j, stream); });
}

}  // namespace ofsdp::kernels::cuda
