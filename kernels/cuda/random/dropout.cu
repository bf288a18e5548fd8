// A thread draws one block of Philox, four words, for four elements that lie sixteen apart: the sixteen threads of a group
// touch 64 elements, each access of a half warp whole sectors of 32 bytes.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/random/philox.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 64, kApart = 16;  // elements of a group, and between those of a thread

struct View {
  int64_t samples, elements, draws;  // draws: threads a sample
  uint32_t threshold;
  float scale;
  uint64_t node_seed;
  const RandomInput* random;
  const int64_t* sample_index;
  bool* mask;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(View v, const T* x, T* y) {
  __shared__ PhiloxKey key;
  if (threadIdx.x == 0) key = key_of(*v.random, v.node_seed);
  __syncthreads();
  const int64_t draw = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t sample = draw / v.draws;
  if (sample >= v.samples) return;
  const int64_t block = draw - sample * v.draws;
  const int64_t first = block / kApart * kGroup + block % kApart;
  const int64_t index = v.sample_index == nullptr ? 0 : v.sample_index[sample];
  uint32_t words[4];
  philox(static_cast<uint64_t>(block), static_cast<uint64_t>(index), key, words);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int64_t e = first + w * kApart;
    if (e >= v.elements) continue;
    const int64_t at = sample * v.elements + e;
    const bool kept = (words[w] >> 8) >= v.threshold;
    y[at] = Stored<T>::from(kept ? to_float(x[at]) * v.scale : 0.0f);
    if (v.mask != nullptr) v.mask[at] = kept;
  }
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    grad_kernel(const T* dy, const bool* mask, T* dx, int64_t n, float scale) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= n) return;
  float d[V];
  load<V>(dy + i, d);
  const Pack<bool, V> kept = *reinterpret_cast<const Pack<bool, V>*>(mask + i);
#pragma unroll
  for (int k = 0; k < V; ++k) d[k] = kept.v[k] ? d[k] * scale : 0.0f;
  store<V>(dx + i, d);
}

float scale_of(double ratio) { return static_cast<float>(ratio >= 1 ? 0 : 1 / (1 - ratio)); }

}  // namespace

cudaError_t dropout(const DropoutCall& c, cudaStream_t stream) {
  const int64_t draws = blocks_for(c.elements, kGroup) * kApart;
  const View view{c.samples,
                  c.elements,
                  draws,
                  static_cast<uint32_t>(std::ceil(c.ratio * 0x1p24)),
                  scale_of(c.ratio),
                  c.node_seed,
                  c.random,
                  c.sample_index,
                  c.mask};
  return with_float(c.dtype, [&](auto t) {
    using T = decltype(t);
    return launch_blocks(stream, blocks_for(c.samples * draws, kThreads), kThreads,
                         dropout_kernel<T>, view, static_cast<const T*>(c.x), static_cast<T*>(c.y));
  });
}

cudaError_t dropout_grad(DType dtype, const void* dy, const bool* mask, void* dx, int64_t numel,
                         double ratio, cudaStream_t stream) {
  return with_float(dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = kPack<T>;
    const bool packs = aligned16(numel, 1, dy, mask, dx);
    const float scale = scale_of(ratio);
    const T* from = static_cast<const T*>(dy);
    return packs ? launch_blocks(stream, blocks_for(numel, V * kThreads), kThreads,
                                 grad_kernel<T, V>, from, mask, static_cast<T*>(dx), numel, scale)
                 : launch_blocks(stream, blocks_for(numel, kThreads), kThreads, grad_kernel<T, 1>,
                                 from, mask, static_cast<T*>(dx), numel, scale);
  });
}

}  // namespace ofsdp::kernels::cuda
