// With inner = 1, up to 8192 classes stay in registers and are read once; longer rows take two
// passes with an online maximum. With inner > 1 a thread handles one column, and adjacent threads
// read adjacent elements.
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/rows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// G threads per row, with E elements each in registers; one read and one write.
template <typename T, int V, int E, int G>
OFSDP_CUDA_KERNEL softmax_forward_held(const T* x, T* y, int64_t rows, int64_t n, bool log) {
  __shared__ float spare[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool in_range = row < rows;
  const int64_t width = in_range ? n : 0;
  Held<T, V, E> held;
  held.template load_from<G>(x + row * n, width, lane);
  float v[E];
  float max = -INFINITY;
  for_packs<V, E, G>(width, lane, [&](int first, int64_t c) {
    held.get(first, x + row * n + c, v + first);
    unrolled<V>([&](int k) { max = Largest{}(max, v[first + k]); });
  });
  max = group_reduce<G>(max, Largest{}, spare);
  float sum = 0;
  for_packs<V, E, G>(width, lane, [&](int first, int64_t) {
    unrolled<V>([&](int k) {
      v[first + k] -= max;
      const float e = exp_for<T>(v[first + k]);
      if (!log) v[first + k] = e;
      sum += e;
    });
  });
  sum = group_reduce<G>(sum, Add{}, spare);
  if (!in_range) return;
  const float scale = 1.0f / sum, less = logf(sum);
  for_packs<V, E, G>(n, lane, [&](int first, int64_t c) {
    unrolled<V>([&](int k) { v[first + k] = log ? v[first + k] - less : v[first + k] * scale; });
    store<V>(y + row * n + c, v + first);
  });
}

// A block per row: online maximum and sum, then a second read to write y.
template <typename T>
OFSDP_CUDA_KERNEL softmax_forward_long(const T* x, T* y, int64_t n, bool packs, bool log) {
  __shared__ float spare[kThreads / kWarp];
  const T* from = x + blockIdx.x * n;
  T* to = y + blockIdx.x * n;
  const OnlineSoftmax all = online_softmax<kThreads>(from, n, static_cast<int>(threadIdx.x), spare);
  const float scale = 1.0f / all.sum, less = logf(all.sum);
  for_row_packs(from, n, packs, static_cast<int>(threadIdx.x), kThreads, [&]<int N>(int64_t i) {
    float v[N];
    load<N>(from + i, v);
    unrolled<N>(
        [&](int k) { v[k] = log ? (v[k] - all.max) - less : exp_for<T>(v[k] - all.max) * scale; });
    store<N>(to + i, v);
  });
}

// A thread per column: three passes over the classes.
template <typename T>
OFSDP_CUDA_KERNEL forward_columns(const T* x, T* y, SoftmaxParams e) {
  OFSDP_CUDA_ITEM(column, e.outer * e.inner);
  const int64_t first = column / e.inner * e.classes * e.inner + column % e.inner;
  auto at = [&](int64_t c) { return to_float(x[first + c * e.inner]); };
  float max = -INFINITY, sum = 0;
  for (int64_t c = 0; c < e.classes; ++c) max = Largest{}(max, at(c));
  for (int64_t c = 0; c < e.classes; ++c) sum += expf(at(c) - max);
  const float scale = 1.0f / sum, less = logf(sum);
  for (int64_t c = 0; c < e.classes; ++c) {
    const float v = at(c) - max;
    y[first + c * e.inner] = Stored<T>::from(e.log ? v - less : expf(v) * scale);
  }
}

// term: the summand over classes. slope: the gradient, given the sum.
__device__ inline float term(float dy, float y, bool log) { return log ? dy : dy * y; }
__device__ inline float slope(float dy, float y, float sum, bool log) {
  return log ? dy - expf(y) * sum : y * (dy - sum);
}

// G threads per row, with E elements of dy and y each in registers.
template <typename T, int V, int E, int G>
OFSDP_CUDA_KERNEL softmax_backward_held(const T* dy, const T* y, T* dx, int64_t rows, int64_t n,
                                        bool log) {
  __shared__ float spare[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool in_range = row < rows;
  Held<T, V, E> held_dy, held_y;
  held_dy.template load_from<G>(dy + row * n, in_range ? n : 0, lane);
  held_y.template load_from<G>(y + row * n, in_range ? n : 0, lane);
  float d[E], v[E];
  float sum = 0;
  for_packs<V, E, G>(in_range ? n : 0, lane, [&](int first, int64_t c) {
    held_dy.get(first, dy + row * n + c, d + first);
    held_y.get(first, y + row * n + c, v + first);
    unrolled<V>([&](int k) { sum += term(d[first + k], v[first + k], log); });
  });
  sum = group_reduce<G>(sum, Add{}, spare);
  if (!in_range) return;
  for_packs<V, E, G>(n, lane, [&](int first, int64_t c) {
    unrolled<V>([&](int k) { d[first + k] = slope(d[first + k], v[first + k], sum, log); });
    store<V>(dx + row * n + c, d + first);
  });
}

// A block per row: the sum, then a second read to write dx.
template <typename T>
OFSDP_CUDA_KERNEL softmax_backward_long(const T* dy, const T* y, T* dx, int64_t n, bool packs,
                                        bool log) {
  __shared__ float spare[kThreads / kWarp];
  const int64_t at = blockIdx.x * n;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  for_row_packs(dy + at, n, packs, thread, kThreads, [&]<int N>(int64_t i) {
    float d[N], v[N];
    load<N>(dy + at + i, d);
    load<N>(y + at + i, v);
    unrolled<N>([&](int k) { sum += term(d[k], v[k], log); });
  });
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  for_row_packs(dy + at, n, packs, thread, kThreads, [&]<int N>(int64_t i) {
    float d[N], v[N];
    load<N>(dy + at + i, d);
    load<N>(y + at + i, v);
    unrolled<N>([&](int k) { d[k] = slope(d[k], v[k], sum, log); });
    store<N>(dx + at + i, d);
  });
}

// A thread per column: two passes over the classes.
template <typename T>
OFSDP_CUDA_KERNEL backward_columns(const T* dy, const T* y, T* dx, SoftmaxParams e) {
  OFSDP_CUDA_ITEM(column, e.outer * e.inner);
  const int64_t first = column / e.inner * e.classes * e.inner + column % e.inner;
  float sum = 0;
  for (int64_t c = 0; c < e.classes; ++c) {
    const int64_t at = first + c * e.inner;
    sum += term(to_float(dy[at]), to_float(y[at]), e.log);
  }
  for (int64_t c = 0; c < e.classes; ++c) {
    const int64_t at = first + c * e.inner;
    dx[at] = Stored<T>::from(slope(to_float(dy[at]), to_float(y[at]), sum, e.log));
  }
}

template <typename T>
cudaError_t softmax_forward_as(const SoftmaxParams& e, const T* x, T* y, cudaStream_t stream) {
  if (e.inner > 1) return over(e.outer * e.inner, stream, forward_columns<T>, x, y, e);
  if (e.classes > kMaxRegisterRow) {
    return launch_blocks(stream, e.outer, kThreads, softmax_forward_long<T>, x, y, e.classes,
                         same_alignment(x, y), e.log);
  }
  return held<T>(e.classes, aligned16(e.classes, sizeof(T), x, y), [&]<int V, int E, int G>() {
    return launch_blocks(stream, blocks_for(e.outer, kThreads / G), kThreads,
                         softmax_forward_held<T, V, E, G>, x, y, e.outer, e.classes, e.log);
  });
}

template <typename T>
cudaError_t softmax_backward_as(const SoftmaxParams& e, const T* dy, const T* y, T* dx,
                                cudaStream_t stream) {
  if (e.inner > 1) return over(e.outer * e.inner, stream, backward_columns<T>, dy, y, dx, e);
  if (e.classes > kMaxRegisterRow) {
    return launch_blocks(stream, e.outer, kThreads, softmax_backward_long<T>, dy, y, dx, e.classes,
                         same_alignment(dy, y, dx), e.log);
  }
  return held<T>(e.classes, aligned16(e.classes, sizeof(T), dy, y, dx), [&]<int V, int E, int G>() {
    return launch_blocks(stream, blocks_for(e.outer, kThreads / G), kThreads,
                         softmax_backward_held<T, V, E, G>, dy, y, dx, e.outer, e.classes, e.log);
  });
}

}  // namespace

cudaError_t softmax(const SoftmaxParams& e, const void* x, void* y, cudaStream_t stream) {
  if (e.outer * e.classes * e.inner == 0) return cudaSuccess;
  return with_float(e.dtype, [&]<typename T>(T) {
    return softmax_forward_as(e, static_cast<const T*>(x), static_cast<T*>(y), stream);
  });
}

cudaError_t softmax_grad(const SoftmaxParams& e, const void* dy, const void* y, void* dx,
                         cudaStream_t stream) {
  if (e.outer * e.classes * e.inner == 0) return cudaSuccess;
  return with_float(e.dtype, [&]<typename T>(T) {
    return softmax_backward_as(e, static_cast<const T*>(dy), static_cast<const T*>(y),
                               static_cast<T*>(dx), stream);
  });
}

}  // namespace ofsdp::kernels::cuda
