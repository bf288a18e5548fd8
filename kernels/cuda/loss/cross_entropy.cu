// A label belongs to a group of threads (a warp, else a block) where its classes lie side by side,
// to one thread where they are strided. Losses go to scratch in double; blocks of labels add them,
// and the weights of kept labels, and one block adds what these have found: the order is that of
// the labels, whatever runs first.
//
// [Note: rows from the cache] A row of scores is walked twice: for its softmax, and for what is
// made of it. Blocks of 512 threads keep 2 rows a multiprocessor at work: 27 MB of a vocabulary of
// 50257 in 16 bits, less than the 50 MB of an H100's cache, where the second walk may find them.
// Blocks of 256 would keep twice as many.
#include "kernels/cuda/loss/class_loss.cuh"

namespace ofsdp::kernels::cuda {
namespace {

template <int G>
constexpr int kRowThreads = G > kThreads ? G : kThreads;
template <int G>
constexpr int kRowBlocks = G > kThreads ? 2 : 1;  // at least, on a multiprocessor; 3 would spill
template <int G>
constexpr int kLabelsAtOnce = kRowThreads<G> / G;

// --- totals ---

// One block: f(i) of begin .. end - 1.
template <typename F>
__device__ inline double total_of(int64_t begin, int64_t end, double* spare, const F& f) {
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kLossAdders) sum += f(i);
  return group_fold<kLossAdders>(sum, Add{}, spare);
}

// f(i) of this block's labels.
template <typename F>
__device__ inline double part_of(const Labels& v, double* spare, const F& f) {
  const int64_t begin = int64_t{blockIdx.x} * kLabelsOfBlock;
  const int64_t end = begin + kLabelsOfBlock < v.count ? begin + kLabelsOfBlock : v.count;
  return total_of(begin, end, spare, f);
}

// One block: the sum of what `blocks` blocks have found.
__device__ inline double sum_of_parts(const Labels& v, int64_t blocks, double* spare) {
  return total_of(0, blocks, spare, [&](int64_t i) { return v.parts[i]; });
}

template <typename T>
__device__ inline void put_totals(const Labels& v, double kept, double* spare) {
  const bool mean = v.reduction == LossReduction::kMean;
  const double all = v.smoothing == 0
                         ? 0.0
                         : total_of(0, v.classes, spare, [&](int64_t c) { return v.weight<T>(c); });
  if (threadIdx.x != 0) return;
  v.totals[0] = !mean ? 1.0 : kept == 0 ? 0.0 : 1 / kept;
  v.totals[1] = all;
}

template <typename T>
__global__ void __launch_bounds__(kLossAdders) count_labels(Labels v) {
  __shared__ double spare[kLossAdders / kWarp];
  double kept = 0;
  if (v.reduction == LossReduction::kMean) {
    kept = part_of(v, spare, [&](int64_t i) {
      const int64_t label = v.label(i);
      return label < 0 ? 0.0 : v.weight<T>(label);
    });
  }
  if (gridDim.x == 1) return put_totals<T>(v, kept, spare);
  if (threadIdx.x == 0) v.parts[blockIdx.x] = kept;
}

template <typename T>
__global__ void __launch_bounds__(kLossAdders) join_counts(Labels v, int64_t blocks) {
  __shared__ double spare[kLossAdders / kWarp];
  put_totals<T>(v, sum_of_parts(v, blocks, spare), spare);
}

__device__ inline void put_sum(const Labels& v, void* loss, DType dtype, double sum) {
  const double scale = v.totals[0];
  if (threadIdx.x == 0) put_loss(loss, dtype, 0, scale == 0 ? 0.0 : sum * scale);
}

__global__ void __launch_bounds__(kLossAdders) sum_losses(Labels v, void* loss, DType dtype) {
  __shared__ double spare[kLossAdders / kWarp];
  const double sum = part_of(v, spare, [&](int64_t i) { return v.losses[i]; });
  if (gridDim.x == 1) return put_sum(v, loss, dtype, sum);
  if (threadIdx.x == 0) v.parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kLossAdders)
    join_losses(Labels v, int64_t blocks, void* loss, DType dtype) {
  __shared__ double spare[kLossAdders / kWarp];
  put_sum(v, loss, dtype, sum_of_parts(v, blocks, spare));
}

// --- rows: G threads a label, classes side by side ---

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
  T* const log_prob = static_cast<T*>(f.log_prob);  // may be the scores: they are read first
  const int64_t label = there && lane == 0 ? v.label(i) : -1;
  const float score = label < 0 ? 0.0f : to_float(row[label]);
  if (log_prob == static_cast<const T*>(f.scores)) __syncthreads();
  Normalizer norm;
  if (v.through_softmax) norm = normalizer_of(online_softmax<G>(row, n, lane, spare));
  double spread = 0;
  if (log_prob != nullptr || v.smoothing != 0) {
    walk_row(row, n, packs, lane, G, [&]<int N>(int64_t c) {
      float p[N];
      load<N>(row + c, p);
      unrolled<N>([&](int k) {
        p[k] = norm(p[k]);
        if (v.smoothing != 0) spread += v.weight<T>(c + k) * static_cast<double>(p[k]);
      });
      if (log_prob != nullptr) store<N>(log_prob + i * v.row + c, p);
    });
    spread = group_fold<G>(spread, Add{}, wide);
  }
  if (!there || lane != 0) return;
  const double loss = label_loss<T>(v, label, label < 0 ? 0.0f : norm(score), spread);
  v.losses[i] = loss;
  if (v.reduction == LossReduction::kNone) put_loss(f.loss, f.loss_dtype, i, loss);
  if (f.lse != nullptr) f.lse[i] = norm.max + norm.log;
}

template <typename T, int G>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    backward_rows(Labels v, CrossEntropyBackward b, bool packs) {
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  if (i >= v.count) return;
  const int64_t at = v.reduction == LossReduction::kNone ? i : 0;
  const Normalizer norm{b.lse == nullptr ? 0.0f : b.lse[i], 0};
  const Slope s = slope_of<T>(v, v.label(i), get_loss(b.diff_loss, b.loss_dtype, at), norm);
  const T* row = static_cast<const T*>(b.scores) + i * v.row;
  T* to = static_cast<T*>(b.diff_scores) + i * v.row;
  walk_values(row, v.classes, packs, lane, G, [&]<int N>(int64_t c, float* d) {
    to_slopes<T, true, N>(v, s, c, d);
    store<N>(to + c, d);
  });
}

// Both at once: what forward_rows and backward_rows give, bit by bit. Smooth: there is label
// smoothing, which costs registers.
template <typename T, int G, bool Smooth>
__global__ void __launch_bounds__(kRowThreads<G>, kRowBlocks<G>)
    joined_rows(Labels v, CrossEntropyJoined j, bool packs) {
  __shared__ float spare[kRowThreads<G> / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t i = int64_t{blockIdx.x} * kLabelsAtOnce<G> + threadIdx.x / G;
  const bool there = i < v.count;
  const int64_t n = there ? v.classes : 0;
  const T* row = static_cast<const T*>(j.scores) + (there ? i : 0) * v.row;
  T* const to = static_cast<T*>(j.diff_scores) + (there ? i : 0) * v.row;  // may be the row
  const int64_t label = there ? v.label(i) : -1;
  const float score = label < 0 || lane != 0 ? 0.0f : to_float(row[label]);
  __syncthreads();  // no thread writes before that is read
  Normalizer norm;
  if (label >= 0) norm = normalizer_of(online_softmax<G>(row, n, lane, spare));
  const Slope s = slope_of<T>(v, label, *j.diff_loss, kept_of<T>(norm));
  double spread = 0;
  walk_values<Smooth ? 2 : 4>(row, n, packs, lane, G, [&]<int N>(int64_t c, float* d) {
    if (Smooth && label >= 0) {
      unrolled<N>([&](int k) { spread += v.weight<T>(c + k) * static_cast<double>(norm(d[k])); });
    }
    to_slopes<T, Smooth, N>(v, s, c, d);
    store<N>(to + c, d);
  });
  if constexpr (Smooth) {
    __shared__ double wide[kRowThreads<G> / kWarp];
    spread = group_fold<G>(spread, Add{}, wide);
  }
  if (there && lane == 0) v.losses[i] = label_loss<T>(v, label, norm(score), spread);
}

// --- columns: a thread a label ---

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
    norm = normalizer_of(all);
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
  const Slope s = slope_of<T>(v, v.label(i), get_loss(b.diff_loss, b.loss_dtype, at), norm);
  const int64_t first = v.first(i);
  for (int64_t c = 0; c < v.classes; ++c) {
    const int64_t place = first + c * v.inner;
    float d[1] = {to_float(static_cast<const T*>(b.scores)[place])};
    to_slopes<T, true, 1>(v, s, c, d);
    static_cast<T*>(b.diff_scores)[place] = Stored<T>::from(d[0]);
  }
}

// --- launches ---

template <typename T>
cudaError_t find_totals(const Labels& v, cudaStream_t stream) {
  const int64_t blocks = v.reduction == LossReduction::kMean ? label_blocks(v.count) : 1;
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks, kLossAdders, count_labels<T>, v));
  if (blocks == 1) return cudaSuccess;
  return launch_blocks(stream, 1, kLossAdders, join_counts<T>, v, blocks);
}

cudaError_t find_loss(const Labels& v, void* loss, DType dtype, cudaStream_t stream) {
  const int64_t blocks = label_blocks(v.count);
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks, kLossAdders, sum_losses, v, loss, dtype));
  if (blocks == 1) return cudaSuccess;
  return launch_blocks(stream, 1, kLossAdders, join_losses, v, blocks, loss, dtype);
}

// Calls f<G>(blocks, threads) with the threads of a label.
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
  if (c.reduction != LossReduction::kNone) OFSDP_CUDA_TRY(find_totals<T>(v, stream));
  if (c.inner > 1) {
    OFSDP_CUDA_TRY(over(v.count, stream, forward_columns<T>, v, f));
  } else {
    const bool packs = f.log_prob == nullptr || same_alignment(f.scores, f.log_prob);
    OFSDP_CUDA_TRY(over_labels(v, [&]<int G>(int64_t blocks, int threads) {
      return launch_blocks(stream, blocks, threads, forward_rows<T, G>, v, f, packs);
    }));
  }
  if (c.reduction == LossReduction::kNone) return cudaSuccess;
  return find_loss(v, f.loss, f.loss_dtype, stream);
}

template <typename T>
cudaError_t backward_as(const CrossEntropy& c, const CrossEntropyBackward& b, cudaStream_t stream) {
  const Labels v(c, b.scratch);
  OFSDP_CUDA_TRY(find_totals<T>(v, stream));
  if (c.inner > 1) return over(v.count, stream, backward_columns<T>, v, b);
  return over_labels(v, [&]<int G>(int64_t blocks, int threads) {
    return launch_blocks(stream, blocks, threads, backward_rows<T, G>, v, b,
                         same_alignment(b.scores, b.diff_scores));
  });
}

template <typename T>
cudaError_t joined_as(const CrossEntropy& c, const CrossEntropyJoined& j, cudaStream_t stream) {
  const Labels v(c, j.scratch);
  OFSDP_CUDA_TRY(find_totals<T>(v, stream));
  OFSDP_CUDA_TRY(over_labels(v, [&]<int G>(int64_t blocks, int threads) {
    return launch_blocks(stream, blocks, threads,
                         c.smoothing == 0 ? joined_rows<T, G, false> : joined_rows<T, G, true>, v,
                         j, same_alignment(j.scores, j.diff_scores));
  }));
  return find_loss(v, j.loss, DType::kFloat32, stream);
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
