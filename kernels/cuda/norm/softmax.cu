// Rows up to 8192 wide stay in registers and are read once; longer rows are walked twice with a
// running maximum. Classes that are not the last axis have one thread per column, since
// neighbours then read neighbours.
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/online_softmax.cuh"
#include "kernels/cuda/norm/rows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

template <typename T, int V, int E, int G>
OFSDP_CUDA_KERNEL softmax_forward_held(const T* x, T* y, int64_t rows, int64_t n, bool log) {
  __shared__ float spare[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool there = row < rows;
  const int64_t width = there ? n : 0;
  Held<T, V, E> held;
  held.template load_from<G>(x + row * n, width, lane);
  float v[E];
  float max = -INFINITY;
  for_packs<V, E, G>(width, lane, [&](int first, int64_t c) {
    held.get(first, x + row * n + c, v + first);
    unrolled<V>([&](int k) { max = Largest{}(max, v[first + k]); });
  });
  max = group_fold<G>(max, Largest{}, spare);
  float sum = 0;
  for_packs<V, E, G>(width, lane, [&](int first, int64_t) {
    unrolled<V>([&](int k) {
      v[first + k] -= max;
      const float e = exp_for<T>(v[first + k]);
      if (!log) v[first + k] = e;
      sum += e;
    });
  });
  sum = group_fold<G>(sum, Add{}, spare);
  if (!there) return;
  const float scale = 1.0f / sum, less = logf(sum);
  for_packs<V, E, G>(n, lane, [&](int first, int64_t c) {
    unrolled<V>([&](int k) { v[first + k] = log ? v[first + k] - less : v[first + k] * scale; });
    store<V>(y + row * n + c, v + first);
  });
}

template <typename T>
OFSDP_CUDA_KERNEL softmax_forward_walked(const T* x, T* y, int64_t n, bool packs, bool log) {
  __shared__ float spare[kThreads / kWarp];
  const T* from = x + blockIdx.x * n;
  T* to = y + blockIdx.x * n;
  const OnlineSoftmax all = online_softmax<kThreads>(from, n, static_cast<int>(threadIdx.x), spare);
  const float scale = 1.0f / all.sum, less = logf(all.sum);
  walk_row(from, n, packs, static_cast<int>(threadIdx.x), kThreads, [&]<int N>(int64_t i) {
    float v[N];
    load<N>(from + i, v);
    unrolled<N>(
        [&](int k) { v[k] = log ? (v[k] - all.max) - less : exp_for<T>(v[k] - all.max) * scale; });
    store<N>(to + i, v);
  });
}

template <typename T>
OFSDP_CUDA_KERNEL forward_columns(const T* x, T* y, SoftmaxExtent e) {
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

// The sum over the classes, and the gradient from the sum.
__device__ inline float term(float dy, float y, bool log) { return log ? dy : dy * y; }
__device__ inline float slope(float dy, float y, float sum, bool log) {
  return log ? dy - expf(y) * sum : y * (dy - sum);
}

template <typename T, int V, int E, int G>
OFSDP_CUDA_KERNEL softmax_backward_held(const T* dy, const T* y, T* dx, int64_t rows, int64_t n,
                                        bool log) {
  __shared__ float spare[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool there = row < rows;
  Held<T, V, E> held_dy, held_y;
  held_dy.template load_from<G>(dy + row * n, there ? n : 0, lane);
  held_y.template load_from<G>(y + row * n, there ? n : 0, lane);
  float d[E], v[E];
  float sum = 0;
  for_packs<V, E, G>(there ? n : 0, lane, [&](int first, int64_t c) {
    held_dy.get(first, dy + row * n + c, d + first);
    held_y.get(first, y + row * n + c, v + first);
    unrolled<V>([&](int k) { sum += term(d[first + k], v[first + k], log); });
  });
  sum = group_fold<G>(sum, Add{}, spare);
  if (!there) return;
  for_packs<V, E, G>(n, lane, [&](int first, int64_t c) {
    unrolled<V>([&](int k) { d[first + k] = slope(d[first + k], v[first + k], sum, log); });
    store<V>(dx + row * n + c, d + first);
  });
}

template <typename T>
OFSDP_CUDA_KERNEL softmax_backward_walked(const T* dy, const T* y, T* dx, int64_t n, bool packs,
                                          bool log) {
  __shared__ float spare[kThreads / kWarp];
  const int64_t at = blockIdx.x * n;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  walk_row(dy + at, n, packs, thread, kThreads, [&]<int N>(int64_t i) {
    float d[N], v[N];
    load<N>(dy + at + i, d);
    load<N>(y + at + i, v);
    unrolled<N>([&](int k) { sum += term(d[k], v[k], log); });
  });
  sum = group_fold<kThreads>(sum, Add{}, spare);
  walk_row(dy + at, n, packs, thread, kThreads, [&]<int N>(int64_t i) {
    float d[N], v[N];
    load<N>(dy + at + i, d);
    load<N>(y + at + i, v);
    unrolled<N>([&](int k) { d[k] = slope(d[k], v[k], sum, log); });
    store<N>(dx + at + i, d);
  });
}

template <typename T>
OFSDP_CUDA_KERNEL backward_columns(const T* dy, const T* y, T* dx, SoftmaxExtent e) {
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
cudaError_t softmax_forward_as(const SoftmaxExtent& e, const T* x, T* y, cudaStream_t stream) {
  if (e.inner > 1) return over(e.outer * e.inner, stream, forward_columns<T>, x, y, e);
  if (e.classes > kLongestHeld) {
    return launch_blocks(stream, e.outer, kThreads, softmax_forward_walked<T>, x, y, e.classes,
                         same_alignment(x, y), e.log);
  }
  return held<T>(e.classes, aligned16(e.classes, sizeof(T), x, y), [&]<int V, int E, int G>() {
    return launch_blocks(stream, blocks_for(e.outer, kThreads / G), kThreads,
                         softmax_forward_held<T, V, E, G>, x, y, e.outer, e.classes, e.log);
  });
}

template <typename T>
cudaError_t softmax_backward_as(const SoftmaxExtent& e, const T* dy, const T* y, T* dx,
                                cudaStream_t stream) {
  if (e.inner > 1) return over(e.outer * e.inner, stream, backward_columns<T>, dy, y, dx, e);
  if (e.classes > kLongestHeld) {
    return launch_blocks(stream, e.outer, kThreads, softmax_backward_walked<T>, dy, y, dx,
                         e.classes, same_alignment(dy, y, dx), e.log);
  }
  return held<T>(e.classes, aligned16(e.classes, sizeof(T), dy, y, dx), [&]<int V, int E, int G>() {
    return launch_blocks(stream, blocks_for(e.outer, kThreads / G), kThreads,
                         softmax_backward_held<T, V, E, G>, dy, y, dx, e.outer, e.classes, e.log);
  });
}

}  // namespace

cudaError_t softmax(const SoftmaxExtent& e, const void* x, void* y, cudaStream_t stream) {
  if (e.outer * e.classes * e.inner == 0) return cudaSuccess;
  return with_float(e.dtype, [&]<typename T>(T) {
    return softmax_forward_as(e, static_cast<const T*>(x), static_cast<T*>(y), stream);
  });
}

cudaError_t softmax_grad(const SoftmaxExtent& e, const void* dy, const void* y, void* dx,
                         cudaStream_t stream) {
  if (e.outer * e.classes * e.inner == 0) return cudaSuccess;
  return with_float(e.dtype, [&]<typename T>(T) {
    return softmax_backward_as(e, static_cast<const T*>(dy), static_cast<const T*>(y),
                               static_cast<T*>(dx), stream);
  });
}

}  // namespace ofsdp::kernels::cuda
