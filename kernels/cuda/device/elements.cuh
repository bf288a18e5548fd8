// Helpers that arithmetic.cu and optimizers.cu share: loops over spans in packs, gradients on their
// way.
#pragma once

#include "kernels/core/device_values.h"
#include "kernels/cuda/device/device.cuh"

#define OFSDP_CUDA_LOOP(i, n)                                                            \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

namespace ofsdp::kernels::cuda {

// A span of `count` elements in packs of kSpanPack: `packs` of them from element `head` on, where
// all operands are aligned to their packs; the elements before and after them one by one. Spans of
// units begin anywhere, but mostly alike in all operands; where they do not there are no packs.
inline constexpr int kSpanPack = 4;
struct SpanPacks {
  int64_t count = 0, head = 0, packs = 0;
  int64_t threads() const { return std::max(packs, count - packs * kSpanPack); }
};

template <typename... T>
SpanPacks packs_of(int64_t count, const T*... operands) {
  for (int64_t head = 0; head < std::min<int64_t>(kSpanPack, count); ++head) {
    const auto lies_well = [head](const auto* at) {
      return at == nullptr ||
             reinterpret_cast<uintptr_t>(at + head) % (kSpanPack * sizeof(*at)) == 0;
    };
    if ((lies_well(operands) && ...)) return {count, head, (count - head) / kSpanPack};
  }
  return {count, 0, 0};
}

// kernel(span, arguments...); its loops stride, so that this many blocks are enough for every card.
template <typename K, typename... A>
cudaError_t over_span(const SpanPacks& span, cudaStream_t stream, K kernel, A... arguments) {
  constexpr int64_t kMax = 132 * 16;
  return launch_blocks(stream, std::clamp<int64_t>(blocks_for(span.threads(), 256), 1, kMax), 256,
                       kernel, span, arguments...);
}

// f<V>(i) for elements i .. i + V - 1, all of the span; V is kSpanPack or 1.
template <typename F>
__device__ inline void for_span(const SpanPacks& s, const F& f) {
  OFSDP_CUDA_LOOP(p, s.packs) { f.template operator()<kSpanPack>(s.head + p * kSpanPack); }
  OFSDP_CUDA_LOOP(k, s.count - s.packs * kSpanPack) {
    f.template operator()<1>(k < s.head ? k : k + s.packs * kSpanPack);
  }
}

__device__ inline float rounded(float v, int32_t dtype) {
  if (dtype == static_cast<int32_t>(DType::kBFloat16)) {
    return to_float(Stored<__nv_bfloat16>::from(v));
  }
  if (dtype == static_cast<int32_t>(DType::kFloat16)) return to_float(Stored<__half>::from(v));
  return v;
}

// V elements of a gradient as the update takes it: rounded to the dtype that ranks reduce in, onto
// the earlier sum.
template <typename From, int V>
__device__ inline void load_gradient(const ofsdp_gradient& g, int64_t i, float* to) {
  load<V>(static_cast<const From*>(g.src) + i, to);
  unrolled<V>([&](int k) { to[k] = rounded(to[k], g.reduce_dtype); });
  if (g.onto == nullptr) return;
  float before[V];
  load<V>(g.onto + i, before);
  unrolled<V>([&](int k) { to[k] = to[k] + before[k]; });
}

}  // namespace ofsdp::kernels::cuda
