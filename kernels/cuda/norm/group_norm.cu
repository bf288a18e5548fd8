// Scratch: two floats a row of [batch, groups], then two doubles a chunk: of rows, or of the segments of single channels.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/norm/group_norm.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kChunk = 2048;

struct Sums {
  double a, b;
};
struct Share {
  float x, y;
};

template <typename T>
struct Moments {  // of differences from the segment's first element
  const T* x;
  __device__ void add(int64_t, int64_t first, int64_t at, Sums& s) const {
    const double d = to_float(x[at]) - to_float(x[first]);
    s.a += d;
    s.b += d * d;
  }
};
template <typename T>
struct Slopes {  // of dy and of dy h; segments are channels
  const T *dy, *x;
  const float *mean, *inv;
  int64_t each;
  __device__ void add(int64_t segment, int64_t, int64_t at, Sums& s) const {
    const int64_t row = segment / each;
    const float d = to_float(dy[at]);
    s.a += d;
    s.b += static_cast<double>(d * ((to_float(x[at]) - mean[row]) * inv[row]));
  }
};

// A warp a chunk of a segment of n neighbours.
template <typename F>
OFSDP_CUDA_KERNEL sum_kernel(int64_t segments, int64_t n, int64_t chunks, F terms, Sums* sums) {
  const int64_t item = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const bool there = item < segments * chunks;
  const int64_t segment = there ? item / chunks : 0, chunk = there ? item - segment * chunks : 0;
  const int64_t first = segment * n, begin = chunk * kChunk;
  const int64_t end = there ? (begin + kChunk < n ? begin + kChunk : n) : begin;
  Sums mine{0, 0};
  for (int64_t i = begin + threadIdx.x % kWarp; i < end; i += kWarp) {
    terms.add(segment, first, first + i, mine);
  }
  const Sums all{warp_fold(mine.a, Add{}), warp_fold(mine.b, Add{})};
  if (there && threadIdx.x % kWarp == 0) sums[item] = all;
}

__device__ inline Sums joined(const Sums* sums, int64_t chunks) {
  Sums all{0, 0};
  for (int64_t c = 0; c < chunks; ++c) {
    all.a += sums[c].a;
    all.b += sums[c].b;
  }
  return all;
}

template <typename T>
OFSDP_CUDA_KERNEL moments_kernel(int64_t rows, int64_t width, int64_t chunks, float epsilon,
                                 const Sums* sums, const T* x, float* mean, float* inv) {
  OFSDP_CUDA_ITEM(row, rows);
  const Sums all = joined(sums + row * chunks, chunks);
  const double count = static_cast<double>(width), shift = all.a / count;
  const double variance = all.b / count - shift * shift;
  mean[row] = static_cast<float>(static_cast<double>(to_float(x[row * width])) + shift);
  inv[row] = static_cast<float>(1.0 / sqrt((variance > 0 || variance != variance ? variance : 0) +
                                           static_cast<double>(epsilon)));
}

template <typename T, int V>
OFSDP_CUDA_KERNEL apply_kernel(GroupExtent e, const T* x, const T* scale, const T* bias,
                               const float* mean, const float* inv, T* y) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= e.batch * e.groups * e.each * e.inner) return;
  const int64_t segment = i / e.inner, row = segment / e.each,
                channel = segment % (e.groups * e.each);
  const float factor = inv[row] * to_float(scale[channel]), add = to_float(bias[channel]),
              centre = mean[row];
  float v[V];
  load<V>(x + i, v);
  unrolled<V>([&](int k) { v[k] = (v[k] - centre) * factor + add; });
  store<V>(y + i, v);
}

// A warp a row: what every element of it has taken off, mean(g) inv and mean(g h) inv^2.
template <typename T>
OFSDP_CUDA_KERNEL rows_kernel(GroupExtent e, int64_t chunks, const Sums* sums, const T* scale,
                              const float* inv, Share* shares) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const bool there = row < e.batch * e.groups;
  double g = 0, gh = 0;
  for (int64_t k = threadIdx.x % kWarp; there && k < e.each; k += kWarp) {
    const Sums s = joined(sums + (row * e.each + k) * chunks, chunks);
    const auto factor = static_cast<double>(to_float(scale[row % e.groups * e.each + k]));
    g += s.a * factor;
    gh += s.b * factor;
  }
  g = warp_fold(g, Add{});
  gh = warp_fold(gh, Add{});
  if (!there || threadIdx.x % kWarp != 0) return;
  const auto width = static_cast<double>(e.each * e.inner);
  shares[row].x = static_cast<float>(g / width) * inv[row];
  shares[row].y = static_cast<float>(gh / width) * inv[row] * inv[row];
}

template <typename T>
OFSDP_CUDA_KERNEL channels_kernel(GroupExtent e, int64_t chunks, const Sums* sums, T* dscale,
                                  T* dbias) {
  const int64_t channels = e.groups * e.each;
  OFSDP_CUDA_ITEM(c, channels);
  Sums all{0, 0};
  for (int64_t n = 0; n < e.batch; ++n) {
    const Sums s = joined(sums + (n * channels + c) * chunks, chunks);
    all.a += s.a;
    all.b += s.b;
  }
  if (dscale != nullptr) dscale[c] = Stored<T>::from(static_cast<float>(all.b));
  if (dbias != nullptr) dbias[c] = Stored<T>::from(static_cast<float>(all.a));
}

template <typename T, int V>
OFSDP_CUDA_KERNEL slope_kernel(GroupExtent e, const T* dy, const T* x, const T* scale,
                               const float* mean, const float* inv, const Share* shares, T* dx) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= e.batch * e.groups * e.each * e.inner) return;
  const int64_t segment = i / e.inner, row = segment / e.each,
                channel = segment % (e.groups * e.each);
  const float factor = inv[row] * to_float(scale[channel]), centre = mean[row];
  const Share share = shares[row];
  float v[V], d[V];
  load<V>(x + i, v);
  load<V>(dy + i, d);
  unrolled<V>([&](int k) { d[k] = d[k] * factor - share.x - (v[k] - centre) * share.y; });
  store<V>(dx + i, d);
}

int64_t rows_of(const GroupExtent& e) { return e.batch * e.groups; }
int64_t width_of(const GroupExtent& e) { return e.each * e.inner; }
int64_t chunks_of(int64_t n) { return n == 0 ? 1 : blocks_for(n, kChunk); }
size_t floats_of(const GroupExtent& e) {
  return round_up(static_cast<size_t>(rows_of(e)) * 2 * sizeof(float));
}
Sums* sums_of(const GroupExtent& e, void* scratch) {
  return reinterpret_cast<Sums*>(static_cast<char*>(scratch) + floats_of(e));
}

template <typename F>
cudaError_t sum(int64_t segments, int64_t n, const F& terms, Sums* sums, cudaStream_t stream) {
  const int64_t chunks = chunks_of(n);
  return launch_blocks(stream, blocks_for(segments * chunks, kThreads / kWarp), kThreads,
                       sum_kernel<F>, segments, n, chunks, terms, sums);
}

template <typename T, int V>
cudaError_t apply(const GroupNorm& n, const float* mean, const float* inv, cudaStream_t stream) {
  const int64_t packs = rows_of(n.extent) * width_of(n.extent) / V;
  return over(packs, stream, apply_kernel<T, V>, n.extent, n.x, n.scale, n.bias, mean, inv, n.y);
}

template <typename T>
cudaError_t forward(const GroupNorm& n, cudaStream_t stream) {
  const GroupExtent& e = n.extent;
  const T* const x = static_cast<const T*>(n.x);
  Sums* const sums = sums_of(e, n.scratch);
  float* const floats = static_cast<float*>(n.scratch);
  float* const mean = n.mean != nullptr ? n.mean : floats;
  float* const inv = n.inv != nullptr ? n.inv : floats + rows_of(e);
  OFSDP_CUDA_TRY(sum(rows_of(e), width_of(e), Moments<T>{x}, sums, stream));
  OFSDP_CUDA_TRY(over(rows_of(e), stream, moments_kernel<T>, rows_of(e), width_of(e),
                      chunks_of(width_of(e)), n.epsilon, sums, x, mean, inv));
  return aligned16(e.inner, sizeof(T), n.x, n.y) ? apply<T, kPack<T>>(n, mean, inv, stream)
                                                 : apply<T, 1>(n, mean, inv, stream);
}

template <typename T, int V>
cudaError_t slope(const GroupNormGradient& n, const Share* shares, cudaStream_t stream) {
  const int64_t packs = rows_of(n.extent) * width_of(n.extent) / V;
  return over(packs, stream, slope_kernel<T, V>, n.extent, n.dy, n.x, n.scale, n.mean, n.inv,
              shares, n.dx);
}

template <typename T>
cudaError_t backward(const GroupNormGradient& n, cudaStream_t stream) {
  const GroupExtent& e = n.extent;
  const T* const scale = static_cast<const T*>(n.scale);
  Sums* const sums = sums_of(e, n.scratch);
  auto* const shares = static_cast<Share*>(n.scratch);
  const int64_t channels = e.groups * e.each, chunks = chunks_of(e.inner);
  const Slopes<T> slopes{static_cast<const T*>(n.dy), static_cast<const T*>(n.x), n.mean, n.inv,
                         e.each};
  OFSDP_CUDA_TRY(sum(e.batch * channels, e.inner, slopes, sums, stream));
  OFSDP_CUDA_TRY(over(channels, stream, channels_kernel<T>, e, chunks, sums, n.dscale, n.dbias));
  if (n.dx == nullptr) return cudaSuccess;
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks_for(rows_of(e), kThreads / kWarp), kThreads,
                               rows_kernel<T>, e, chunks, sums, scale, n.inv, shares));
  return aligned16(e.inner, sizeof(T), n.dy, n.x, n.dx) ? slope<T, kPack<T>>(n, shares, stream)
                                                        : slope<T, 1>(n, shares, stream);
}

}  // namespace

size_t group_norm_scratch(const GroupExtent& e) {
  const int64_t rows = rows_of(e) * chunks_of(width_of(e)),
                segments = rows_of(e) * e.each * chunks_of(e.inner);
  return floats_of(e) + static_cast<size_t>(std::max(rows, segments)) * sizeof(Sums);
}

cudaError_t group_norm(const GroupNorm& n, cudaStream_t stream) {
  return with_float(n.extent.dtype, [&](auto t) { return forward<decltype(t)>(n, stream); });
}

cudaError_t group_norm_grad(const GroupNormGradient& n, cudaStream_t stream) {
  return with_float(n.extent.dtype, [&](auto t) { return backward<decltype(t)>(n, stream); });
}

}  // namespace ofsdp::kernels::cuda
