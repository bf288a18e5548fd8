// Cross entropy of class labels: the loss, its gradient, and both in one pass ("joined"). loss.h
// describes operands and scratch, kernels/ops/loss/class_loss.h the formulas.
//
// Each label has one score per class. If the scores of a label are contiguous (a row; inner is 1),
// a warp or a block processes the label; if they are strided (a column), one thread does. Kernels
// write each label's loss to scratch, in double. Then each block adds up 4096 labels: their losses,
// and for a mean the weights of the labels that are not ignored. One more block adds up the blocks'
// sums. The order is always the same, so results are reproducible.
//
// [Note: rows from the cache] A row of scores is read twice: for softmax, then for the result. With
// blocks of 512 threads, one row each, a multiprocessor has two rows in flight. A row of 50257
// scores in 16 bits has 100 kB; 2 rows on each of an H100's 132 multiprocessors have 27 MB, less
// than its L2 cache of 50 MB, so the second read may come from there. Blocks of 256 would have
// twice as many rows in flight, more than the cache holds.
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/norm/rows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// --- Labels: operands and formulas per label. Forward, backward and joined kernels share them, so
// that the joined kernels give the same bits as the other two. ---

constexpr int kSumThreads = 1024;          // block size for sums over labels
constexpr int64_t kLabelsPerBlock = 4096;  // labels per block
// Rows of at most kWarpClasses scores get a warp each, of at most kSmallBlockClasses a block of 256
// threads, longer ones a block of 512.
constexpr int64_t kWarpClasses = 1024;
constexpr int64_t kSmallBlockClasses = 8192;

int64_t label_blocks(int64_t labels) {
  return labels <= kLabelsPerBlock ? 1 : blocks_for(labels, kLabelsPerBlock);
}

// CrossEntropy (`labels` are the label values) plus label count and scratch pointers; `v` in
// kernels.
struct Labels : CrossEntropy {
  int64_t count, row;  // labels; elements from one row of scores to the next, if inner is 1
  // [0]: the factor of every label's loss: 1, or for a mean 1 / the weight sum of labels that are
  // not ignored; 0 if that sum is 0. [1]: with smoothing, the sum of all class weights.
  double* totals;
  double* losses;  // [count]
  double* parts;   // one sum per block of kLabelsPerBlock labels

  Labels(const CrossEntropy& c, void* scratch)
      : CrossEntropy(c),
        count(c.samples * c.inner),
        row(c.pitch == 0 ? c.classes : c.pitch),
        totals(static_cast<double*>(scratch)),
        losses(totals + 2),
        parts(losses + count) {}

  // Returns the index of label i's first score; the others follow at distances of `inner`.
  __device__ int64_t first(int64_t i) const { return i / inner * classes * inner + i % inner; }
  // Returns label i, or -1 if it is ignored. Reports a label out of range to `fault`, and returns
  // 0.
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

// Maps a score to its log-probability, score - max - log(sum of e^(score - max)). The default
// leaves it as it is, for scores that are log-probabilities already.
struct Normalizer {
  float max = 0, log = 0;
  __device__ float operator()(float score) const { return (score - max) - log; }
};

__device__ inline Normalizer make_normalizer(const OnlineSoftmax& all) {
  return {all.max, logf(all.sum)};
}

// Returns one label's loss. `smoothing_sum`: over all classes, weight times log-probability.
template <typename T>
__device__ inline double label_loss(const Labels& v, int64_t label, float log_prob,
                                    double smoothing_sum) {
  if (label < 0) return 0;
  const double label_term = -(1 - v.smoothing) * v.weight<T>(label) * static_cast<double>(log_prob);
  return label_term - v.smoothing / static_cast<double>(v.classes) * smoothing_sum;
}

__device__ inline void store_loss(void* loss, DType dtype, int64_t i, double value) {
  const float v = static_cast<float>(value);
  if (dtype == DType::kFloat16) static_cast<__half*>(loss)[i] = Stored<__half>::from(v);
  if (dtype == DType::kBFloat16)
    static_cast<__nv_bfloat16*>(loss)[i] = Stored<__nv_bfloat16>::from(v);
  if (dtype == DType::kFloat32) static_cast<float*>(loss)[i] = v;
}
__device__ inline float load_loss(const void* loss, DType dtype, int64_t i) {
  if (dtype == DType::kFloat16) return to_float(static_cast<const __half*>(loss)[i]);
  if (dtype == DType::kBFloat16) return to_float(static_cast<const __nv_bfloat16*>(loss)[i]);
  return static_cast<const float*>(loss)[i];
}

// The gradient of one label's loss with respect to score c, with p_c = e^norm(score_c) and the
// class weight w_c:
//
//   p_c * softmax_factor - (c == label ? label_factor : 0) - w_c * smoothing_factor
//
// It is 0 if label is -1. The first term comes through the softmax; if the scores are
// log-probabilities, the gradient is theirs and the term is absent.
struct LabelGrad {
  Normalizer norm;
  float softmax_factor = 0, label_factor = 0, smoothing_factor = 0;
  int64_t label = -1;
  bool through_softmax = false;
};

// `diff_loss`: the gradient of the loss, which totals[0] scales.
template <typename T>
__device__ inline LabelGrad make_label_grad(const Labels& v, int64_t label, float diff_loss,
                                            const Normalizer& norm) {
  LabelGrad s;
  if (label < 0 || v.totals[0] == 0) return s;
  s.label = label;
  s.norm = norm;
  const double factor = v.totals[0] * static_cast<double>(diff_loss);
  const double label_weight = (1 - v.smoothing) * v.weight<T>(label);
  const double smoothing = v.smoothing / static_cast<double>(v.classes);
  s.through_softmax = v.through_softmax;
  s.softmax_factor = static_cast<float>(factor * (label_weight + smoothing * v.totals[1]));
  s.label_factor = static_cast<float>(factor * label_weight);
  s.smoothing_factor = static_cast<float>(factor * smoothing);
  return s;
}

// Replaces scores c .. c + N - 1, in `d`, by their gradients. Smooth: label smoothing may be on. A
// condition that is the same for the whole row is tested once per pack, not per score: with a
// branch per score, each took 22 instructions instead of 7.
template <typename T, bool Smooth, int N>
__device__ inline void to_score_grads(const Labels& v, const LabelGrad& s, int64_t c, float* d) {
  if (s.through_softmax) {
    unrolled<N>([&](int k) { d[k] = exp_for<T>(s.norm(d[k])) * s.softmax_factor; });
  } else {
    unrolled<N>([&](int k) { d[k] = 0; });
  }
  if (Smooth && s.smoothing_factor != 0.0f) {
    unrolled<N>(
        [&](int k) { d[k] -= s.smoothing_factor * static_cast<float>(v.weight<T>(c + k)); });
  }
  if (static_cast<uint64_t>(s.label - c) < N) {
    unrolled<N>([&](int k) {
      if (c + k == s.label) d[k] -= s.label_factor;
    });
  }
}

// Returns the normalizer that a separate backward pass would have, so that the joined kernel gives
// the same bits: for float32 the forward pass saves log-probabilities; for 16 bits only lse, the
// sum of max and log, rounded to float32.
template <typename T>
__device__ inline Normalizer saved_normalizer(const Normalizer& norm) {
  return std::is_same_v<T, float> ? norm : Normalizer{norm.max + norm.log, 0};
}

// G: threads per label, a warp or a whole block. Threads per block, blocks per multiprocessor,
// labels per block.
template <int G>
constexpr int kRowThreads = G > kThreads ? G : kThreads;
template <int G>
constexpr int kRowBlocks = G > kThreads ? 2 : 1;  // at least; with 3, registers would spill
template <int G>
constexpr int kLabelsAtOnce = kRowThreads<G> / G;

// --- Totals ---

// Returns the sum of f(i) for begin <= i < end, by the whole block. `scratch`: shared memory, one
// double per warp.
template <typename F>
__device__ inline double block_sum(int64_t begin, int64_t end, double* scratch, const F& f) {
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kSumThreads) sum += f(i);
  return group_reduce<kSumThreads>(sum, Add{}, scratch);
}

// Returns the sum of f(i) over this block's labels.
template <typename F>
__device__ inline double labels_sum(const Labels& v, double* scratch, const F& f) {
  const int64_t begin = int64_t{blockIdx.x} * kLabelsPerBlock;
  const int64_t end = begin + kLabelsPerBlock < v.count ? begin + kLabelsPerBlock : v.count;
  return block_sum(begin, end, scratch, f);
}

// Returns the sum of all blocks' parts, by a single block.
__device__ inline double parts_sum(const Labels& v, int64_t blocks, double* scratch) {
  return block_sum(0, blocks, scratch, [&](int64_t i) { return v.parts[i]; });
}

// `kept`: the weight sum of the labels that are not ignored; used for a mean.
template <typename T>
__device__ inline void store_totals(const Labels& v, double kept, double* scratch) {
  const bool mean = v.reduction == LossReduction::kMean;
  const double all = v.smoothing == 0 ? 0.0 : block_sum(0, v.classes, scratch, [&](int64_t c) {
    return v.weight<T>(c);
  });
  if (threadIdx.x != 0) return;
  v.totals[0] = !mean ? 1.0 : kept == 0 ? 0.0 : 1 / kept;
  v.totals[1] = all;
}

// For a mean, each block adds up the weights of its labels. A single block also stores the totals;
// several leave that to finish_totals.
template <typename T>
__global__ void __launch_bounds__(kSumThreads) count_labels(Labels v) {
  __shared__ double scratch[kSumThreads / kWarp];
  double kept = 0;
  if (v.reduction == LossReduction::kMean) {
    kept = labels_sum(v, scratch, [&](int64_t i) {
      const int64_t label = v.label(i);
      return label < 0 ? 0.0 : v.weight<T>(label);
    });
  }
  if (gridDim.x == 1) return store_totals<T>(v, kept, scratch);
  if (threadIdx.x == 0) v.parts[blockIdx.x] = kept;
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads) finish_totals(Labels v, int64_t blocks) {
  __shared__ double scratch[kSumThreads / kWarp];
  store_totals<T>(v, parts_sum(v, blocks, scratch), scratch);
}

// Stores the loss, totals[0] times `sum`.
__device__ inline void store_sum(const Labels& v, void* loss, DType dtype, double sum) {
  const double scale = v.totals[0];
  if (threadIdx.x == 0) store_loss(loss, dtype, 0, scale == 0 ? 0.0 : sum * scale);
}

// Each block adds up the losses of its labels. A single block also stores the loss; several leave
// that to finish_loss.
__global__ void __launch_bounds__(kSumThreads) sum_losses(Labels v, void* loss, DType dtype) {
  __shared__ double scratch[kSumThreads / kWarp];
  const double sum = labels_sum(v, scratch, [&](int64_t i) { return v.losses[i]; });
  if (gridDim.x == 1) return store_sum(v, loss, dtype, sum);
  if (threadIdx.x == 0) v.parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    finish_loss(Labels v, int64_t blocks, void* loss, DType dtype) {
  __shared__ double scratch[kSumThreads / kWarp];
  store_sum(v, loss, dtype, parts_sum(v, blocks, scratch));
}

// --- Rows: G threads per label, contiguous classes ---

// Computes the softmax of a row, then the label's loss, log_prob and the sum for smoothing. Thread
// 0 of each group of G reads the label's score and stores the loss. packs: row and log_prob can be
// accessed in packs of several elements.
template <typename T, int G>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    forward_rows(Labels v, CrossEntropyForward f, bool packs) {
  __shared__ float scratch[kRowThreads<G> / kWarp];
  __shared__ double double_scratch[kRowThreads<G> / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  const bool in_range = i < v.count;
  const int64_t n = in_range ? v.classes : 0;
  const T* row = static_cast<const T*>(f.scores) + (in_range ? i : 0) * v.row;
  T* const log_prob = static_cast<T*>(f.log_prob);  // may alias scores
  const int64_t label = in_range && lane == 0 ? v.label(i) : -1;
  const float score = label < 0 ? 0.0f : to_float(row[label]);
  // If log_prob is scores, the label's score is read before any thread overwrites it. Other scores
  // are read and overwritten by the same thread.
  if (log_prob == static_cast<const T*>(f.scores)) __syncthreads();
  Normalizer norm;
  if (v.through_softmax) norm = make_normalizer(online_softmax<G>(row, n, lane, scratch));
  double smoothing_sum = 0;
  if (log_prob != nullptr || v.smoothing != 0) {
    for_row_packs(row, n, packs, lane, G, [&]<int N>(int64_t c) {
      float p[N];
      load<N>(row + c, p);
      unrolled<N>([&](int k) {
        p[k] = norm(p[k]);
        if (v.smoothing != 0) smoothing_sum += v.weight<T>(c + k) * static_cast<double>(p[k]);
      });
      if (log_prob != nullptr) store<N>(log_prob + i * v.row + c, p);
    });
    smoothing_sum = group_reduce<G>(smoothing_sum, Add{}, double_scratch);
  }
  if (!in_range || lane != 0) return;
  const double loss = label_loss<T>(v, label, label < 0 ? 0.0f : norm(score), smoothing_sum);
  v.losses[i] = loss;
  if (v.reduction == LossReduction::kNone) store_loss(f.loss, f.loss_dtype, i, loss);
  if (f.lse != nullptr) f.lse[i] = norm.max + norm.log;
}

// Each thread replaces its packs of scores by gradients. Without lse, scores are log-probabilities,
// so the normalizer is 0.
template <typename T, int G>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    backward_rows(Labels v, CrossEntropyBackward b, bool packs) {
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  if (i >= v.count) return;
  const int64_t loss_index = v.reduction == LossReduction::kNone ? i : 0;
  const Normalizer norm{b.lse == nullptr ? 0.0f : b.lse[i], 0};
  const LabelGrad s =
      make_label_grad<T>(v, v.label(i), load_loss(b.diff_loss, b.loss_dtype, loss_index), norm);
  const T* row = static_cast<const T*>(b.scores) + i * v.row;
  T* grads = static_cast<T*>(b.diff_scores) + i * v.row;
  for_row_values(row, v.classes, packs, lane, G, [&]<int N>(int64_t c, float* d) {
    to_score_grads<T, true, N>(v, s, c, d);
    store<N>(grads + c, d);
  });
}

// forward_rows and backward_rows in one kernel, with the same bits. Smooth: label smoothing is on;
// it takes more registers, so fewer packs are in flight (2 instead of 4).
template <typename T, int G, bool Smooth>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    joined_rows(Labels v, CrossEntropyJoined j, bool packs) {
  __shared__ float scratch[kRowThreads<G> / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  const bool in_range = i < v.count;
  const int64_t n = in_range ? v.classes : 0;
  const T* row = static_cast<const T*>(j.scores) + (in_range ? i : 0) * v.row;
  T* const grads = static_cast<T*>(j.diff_scores) + (in_range ? i : 0) * v.row;  // may alias row
  const int64_t label = in_range ? v.label(i) : -1;
  const float score = label < 0 || lane != 0 ? 0.0f : to_float(row[label]);
  __syncthreads();  // the label's score must be read before any thread overwrites it
  Normalizer norm;
  // All threads of a group have the same label, so the group's reduction inside has all of them.
  if (label >= 0) norm = make_normalizer(online_softmax<G>(row, n, lane, scratch));
  const LabelGrad s = make_label_grad<T>(v, label, *j.diff_loss, saved_normalizer<T>(norm));
  double smoothing_sum = 0;
  for_row_values<Smooth ? 2 : 4>(row, n, packs, lane, G, [&]<int N>(int64_t c, float* d) {
    if (Smooth && label >= 0) {
      unrolled<N>(
          [&](int k) { smoothing_sum += v.weight<T>(c + k) * static_cast<double>(norm(d[k])); });
    }
    to_score_grads<T, Smooth, N>(v, s, c, d);
    store<N>(grads + c, d);
  });
  if constexpr (Smooth) {
    __shared__ double double_scratch[kRowThreads<G> / kWarp];
    smoothing_sum = group_reduce<G>(smoothing_sum, Add{}, double_scratch);
  }
  if (in_range && lane == 0) v.losses[i] = label_loss<T>(v, label, norm(score), smoothing_sum);
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
  double smoothing_sum = 0;
  for (int64_t c = 0; c < v.classes && (log_prob != nullptr || v.smoothing != 0); ++c) {
    const float p = norm(to_float(scores[first + c * v.inner]));
    smoothing_sum += v.smoothing == 0 ? 0.0 : v.weight<T>(c) * static_cast<double>(p);
    if (log_prob != nullptr) log_prob[first + c * v.inner] = Stored<T>::from(p);
  }
  const double loss = label_loss<T>(v, label, chosen, smoothing_sum);
  v.losses[i] = loss;
  if (v.reduction == LossReduction::kNone) store_loss(f.loss, f.loss_dtype, i, loss);
  if (f.lse != nullptr) f.lse[i] = norm.max + norm.log;
}

template <typename T>
OFSDP_CUDA_KERNEL backward_columns(Labels v, CrossEntropyBackward b) {
  OFSDP_CUDA_ITEM(i, v.count);
  const int64_t loss_index = v.reduction == LossReduction::kNone ? i : 0;
  const Normalizer norm{b.lse == nullptr ? 0.0f : b.lse[i], 0};
  const LabelGrad s =
      make_label_grad<T>(v, v.label(i), load_loss(b.diff_loss, b.loss_dtype, loss_index), norm);
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
  return launch_blocks(stream, 1, kSumThreads, finish_totals<T>, v, blocks);
}

cudaError_t compute_loss(const Labels& v, void* loss, DType dtype, cudaStream_t stream) {
  const int64_t blocks = label_blocks(v.count);
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks, kSumThreads, sum_losses, v, loss, dtype));
  if (blocks == 1) return cudaSuccess;
  return launch_blocks(stream, 1, kSumThreads, finish_loss, v, blocks, loss, dtype);
}

// Calls f<G>(blocks, threads per block) with G threads per label, as the class count demands.
template <typename F>
cudaError_t over_labels(const Labels& v, const F& f) {
  const auto launch = [&]<int G>() {
    return f.template operator()<G>(blocks_for(v.count, kLabelsAtOnce<G>), kRowThreads<G>);
  };
  if (v.classes <= kWarpClasses) return launch.template operator()<kWarp>();
  if (v.classes <= kSmallBlockClasses) return launch.template operator()<kThreads>();
  return launch.template operator()<2 * kThreads>();
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

// `v`: the labels of the rows; their scores begin at j.scores.
template <typename T>
cudaError_t rows_as(const Labels& v, const CrossEntropyJoined& j, cudaStream_t stream) {
  return over_labels(v, [&]<int G>(int64_t blocks, int threads) {
    return launch_blocks(stream, blocks, threads,
                         v.smoothing == 0 ? joined_rows<T, G, false> : joined_rows<T, G, true>, v,
                         j, same_alignment(j.scores, j.diff_scores));
  });
}

template <typename T>
cudaError_t joined_as(const CrossEntropy& c, const CrossEntropyJoined& j, cudaStream_t stream) {
  const Labels v(c, j.scratch);
  OFSDP_CUDA_TRY(compute_totals<T>(v, stream));
  OFSDP_CUDA_TRY(rows_as<T>(v, j, stream));
  return compute_loss(v, j.loss, DType::kFloat32, stream);
}

// Returns `all` from label `first` on, `rows` of them.
Labels labels_from(const Labels& all, int64_t first, int64_t rows) {
  Labels some = all;
  const size_t size = all.label_dtype == DType::kInt64 ? sizeof(int64_t) : sizeof(int32_t);
  some.labels = static_cast<const char*>(all.labels) + static_cast<size_t>(first) * size;
  some.losses += first;
  some.count = rows;
  return some;
}

// Returns whether there is a kernel for the dtypes and for the layout: a pitch needs contiguous
// classes.
bool is_supported(const CrossEntropy& c, DType loss) {
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
  if (!is_supported(c, f.loss_dtype)) return cudaErrorNotSupported;
  return with_float(c.dtype, [&]<typename T>(T) { return forward_as<T>(c, f, stream); });
}

cudaError_t cross_entropy_backward(const CrossEntropy& c, const CrossEntropyBackward& b,
                                   cudaStream_t stream) {
  if (!is_supported(c, b.loss_dtype)) return cudaErrorNotSupported;
  return with_float(c.dtype, [&]<typename T>(T) { return backward_as<T>(c, b, stream); });
}

namespace {

bool joins(const CrossEntropy& c) {
  return c.inner == 1 && c.through_softmax && c.reduction != LossReduction::kNone &&
         is_supported(c, DType::kFloat32);
}

}  // namespace

cudaError_t cross_entropy_joined(const CrossEntropy& c, const CrossEntropyJoined& j,
                                 cudaStream_t stream) {
  if (!joins(c)) return cudaErrorNotSupported;
  return with_float(c.dtype, [&]<typename T>(T) { return joined_as<T>(c, j, stream); });
}

cudaError_t cross_entropy_totals(const CrossEntropy& c, const CrossEntropyJoined& j,
                                 cudaStream_t stream) {
  if (!joins(c)) return cudaErrorNotSupported;
  const Labels v(c, j.scratch);
  return with_float(c.dtype, [&]<typename T>(T) { return compute_totals<T>(v, stream); });
}

cudaError_t cross_entropy_rows(const CrossEntropy& c, const CrossEntropyJoined& j, int64_t first,
                               int64_t rows, cudaStream_t stream) {
  if (!joins(c)) return cudaErrorNotSupported;
  const Labels v = labels_from(Labels(c, j.scratch), first, rows);
  return with_float(c.dtype, [&]<typename T>(T) { return rows_as<T>(v, j, stream); });
}

cudaError_t cross_entropy_loss(const CrossEntropy& c, const CrossEntropyJoined& j,
                               cudaStream_t stream) {
  return compute_loss(Labels(c, j.scratch), j.loss, DType::kFloat32, stream);
}

}  // namespace ofsdp::kernels::cuda
