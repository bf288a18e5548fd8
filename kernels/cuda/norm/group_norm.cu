// Scratch: two floats per row of [batch, groups], then two doubles per chunk of a row (forward) or
// of a channel (backward).
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/norm/norm.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kGroupChunk = 2048;

struct Sums {
  double a, b;
};
struct Share {
  float x, y;
};

template <typename T>
struct GroupMoments {  // differences from the segment's first element
  const T* x;
  __device__ void add(int64_t, int64_t first, int64_t at, Sums& s) const {
    const double d = to_float(x[at]) - to_float(x[first]);
    s.a += d;
    s.b += d * d;
  }
};
template <typename T>
struct GroupSlopes {  // sums of dy and dy h; a segment is one channel of one sample
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

// A warp sums a chunk of a contiguous segment of n elements.
template <typename F>
OFSDP_CUDA_KERNEL sum_kernel(int64_t segments, int64_t n, int64_t chunks, F terms, Sums* sums) {
  const int64_t item = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const bool in_range = item < segments * chunks;
  const int64_t segment = in_range ? item / chunks : 0,
                chunk = in_range ? item - segment * chunks : 0;
  const int64_t first = segment * n, begin = chunk * kGroupChunk;
  const int64_t end = in_range ? (begin + kGroupChunk < n ? begin + kGroupChunk : n) : begin;
  Sums mine{0, 0};
  for (int64_t i = begin + threadIdx.x % kWarp; i < end; i += kWarp) {
    terms.add(segment, first, first + i, mine);
  }
  const Sums all{warp_reduce(mine.a, Add{}), warp_reduce(mine.b, Add{})};
  if (in_range && threadIdx.x % kWarp == 0) sums[item] = all;
}

__device__ inline Sums joined(const Sums* sums, int64_t chunks) {
  Sums all{0, 0};
  for (int64_t c = 0; c < chunks; ++c) {
    all.a += sums[c].a;
    all.b += sums[c].b;
  }
  return all;
}

// A thread per row: adds the chunks and stores mean and inv.
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

// Row of [batch, groups] and channel of element i.
struct Segment {
  int64_t row, channel;
};
__device__ inline Segment segment_of(const GroupNormParams& e, int64_t i) {
  const int64_t segment = i / e.inner;
  return {segment / e.each, segment % (e.groups * e.each)};
}

// A thread per y pack or element.
template <typename T, int V>
OFSDP_CUDA_KERNEL group_apply_kernel(GroupNorm n) {
  const GroupNormParams& e = n.extent;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= e.batch * e.groups * e.each * e.inner) return;
  const Segment at = segment_of(e, i);
  const float factor = n.inv[at.row] * to_float(static_cast<const T*>(n.scale)[at.channel]),
              add = to_float(static_cast<const T*>(n.bias)[at.channel]), centre = n.mean[at.row];
  float v[V];
  load<V>(static_cast<const T*>(n.x) + i, v);
  unrolled<V>([&](int k) { v[k] = (v[k] - centre) * factor + add; });
  store<V>(static_cast<T*>(n.y) + i, v);
}

// A warp per row computes the terms to subtract from each element: mean(g) inv and mean(g h) inv^2.
template <typename T>
OFSDP_CUDA_KERNEL rows_kernel(GroupNormParams e, int64_t chunks, const Sums* sums, const T* scale,
                              const float* inv, Share* shares) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const bool in_range = row < e.batch * e.groups;
  double g = 0, gh = 0;
  for (int64_t k = threadIdx.x % kWarp; in_range && k < e.each; k += kWarp) {
    const Sums s = joined(sums + (row * e.each + k) * chunks, chunks);
    const auto factor = static_cast<double>(to_float(scale[row % e.groups * e.each + k]));
    g += s.a * factor;
    gh += s.b * factor;
  }
  g = warp_reduce(g, Add{});
  gh = warp_reduce(gh, Add{});
  if (!in_range || threadIdx.x % kWarp != 0) return;
  const auto width = static_cast<double>(e.each * e.inner);
  shares[row].x = static_cast<float>(g / width) * inv[row];
  shares[row].y = static_cast<float>(gh / width) * inv[row] * inv[row];
}

// A thread per channel: dscale and dbias, summed over the batch.
template <typename T>
OFSDP_CUDA_KERNEL channels_kernel(GroupNormParams e, int64_t chunks, const Sums* sums, T* dscale,
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

// A thread per dx pack or element.
template <typename T, int V>
OFSDP_CUDA_KERNEL slope_kernel(GroupNormGradient n) {
  const GroupNormParams& e = n.extent;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= e.batch * e.groups * e.each * e.inner) return;
  const Segment at = segment_of(e, i);
  const float factor = n.inv[at.row] * to_float(static_cast<const T*>(n.scale)[at.channel]),
              centre = n.mean[at.row];
  const Share share = static_cast<const Share*>(n.scratch)[at.row];
  float v[V], d[V];
  load<V>(static_cast<const T*>(n.x) + i, v);
  load<V>(static_cast<const T*>(n.dy) + i, d);
  unrolled<V>([&](int k) { d[k] = d[k] * factor - share.x - (v[k] - centre) * share.y; });
  store<V>(static_cast<T*>(n.dx) + i, d);
}

int64_t rows_of(const GroupNormParams& e) { return e.batch * e.groups; }
int64_t width_of(const GroupNormParams& e) { return e.each * e.inner; }
int64_t group_chunks_of(int64_t n) { return n == 0 ? 1 : blocks_for(n, kGroupChunk); }
size_t group_floats_of(const GroupNormParams& e) {
  return round_up(static_cast<size_t>(rows_of(e)) * 2 * sizeof(float));
}
Sums* sums_of(const GroupNormParams& e, void* scratch) {
  return reinterpret_cast<Sums*>(static_cast<char*>(scratch) + group_floats_of(e));
}

template <typename F>
cudaError_t sum(int64_t segments, int64_t n, const F& terms, Sums* sums, cudaStream_t stream) {
  const int64_t chunks = group_chunks_of(n);
  return launch_blocks(stream, blocks_for(segments * chunks, kThreads / kWarp), kThreads,
                       sum_kernel<F>, segments, n, chunks, terms, sums);
}

template <typename T>
cudaError_t forward(GroupNorm n, cudaStream_t stream) {
  const GroupNormParams& e = n.extent;
  const int64_t rows = rows_of(e), width = width_of(e);
  Sums* const sums = sums_of(e, n.scratch);
  float* const floats = static_cast<float*>(n.scratch);
  if (n.mean == nullptr) n.mean = floats;
  if (n.inv == nullptr) n.inv = floats + rows;
  OFSDP_CUDA_TRY(sum(rows, width, GroupMoments<T>{static_cast<const T*>(n.x)}, sums, stream));
  OFSDP_CUDA_TRY(over(rows, stream, moments_kernel<T>, rows, width, group_chunks_of(width),
                      n.epsilon, sums, n.x, n.mean, n.inv));
  return launch_over_packs<kPack<T>>(aligned16(e.inner, sizeof(T), n.x, n.y), rows * width, stream,
                                     group_apply_kernel<T, kPack<T>>, group_apply_kernel<T, 1>, n);
}

template <typename T>
cudaError_t backward(const GroupNormGradient& n, cudaStream_t stream) {
  const GroupNormParams& e = n.extent;
  const T* const scale = static_cast<const T*>(n.scale);
  Sums* const sums = sums_of(e, n.scratch);
  const int64_t channels = e.groups * e.each, chunks = group_chunks_of(e.inner);
  const GroupSlopes<T> slopes{static_cast<const T*>(n.dy), static_cast<const T*>(n.x), n.mean,
                              n.inv, e.each};
  OFSDP_CUDA_TRY(sum(e.batch * channels, e.inner, slopes, sums, stream));
  OFSDP_CUDA_TRY(over(channels, stream, channels_kernel<T>, e, chunks, sums, n.dscale, n.dbias));
  if (n.dx == nullptr) return cudaSuccess;
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks_for(rows_of(e), kThreads / kWarp), kThreads,
                               rows_kernel<T>, e, chunks, sums, scale, n.inv,
                               static_cast<Share*>(n.scratch)));
  return launch_over_packs<kPack<T>>(aligned16(e.inner, sizeof(T), n.dy, n.x, n.dx),
                                     rows_of(e) * width_of(e), stream, slope_kernel<T, kPack<T>>,
                                     slope_kernel<T, 1>, n);
}

}  // namespace

size_t group_norm_scratch(const GroupNormParams& e) {
  const int64_t rows = rows_of(e) * group_chunks_of(width_of(e)),
                segments = rows_of(e) * e.each * group_chunks_of(e.inner);
  return group_floats_of(e) + static_cast<size_t>(std::max(rows, segments)) * sizeof(Sums);
}

cudaError_t group_norm(const GroupNorm& n, cudaStream_t stream) {
  return with_float(n.extent.dtype, [&]<typename T>(T) { return forward<T>(n, stream); });
}

cudaError_t group_norm_grad(const GroupNormGradient& n, cudaStream_t stream) {
  return with_float(n.extent.dtype, [&]<typename T>(T) { return backward<T>(n, stream); });
}

}  // namespace ofsdp::kernels::cuda
