// Loops over flat spans in packs of four, and gradient loads; shared by arithmetic.cu and
// optimizers.cu.
#pragma once

#include "kernels/core/device_values.h"
#include "kernels/cuda/device/device.cuh"

#define OFSDP_CUDA_LOOP(i, n)                                                            \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

namespace ofsdp::kernels::cuda {

// A span split for vector access: `packs` packs, kSpanPack elements each, start at element `head`,
// where every operand is aligned; a thread handles each element before and after them. A span may
// start at any element of a unit (parameters flattened into one tensor), but mostly at the same
// element in all operands. If alignments differ, packs is 0.
inline constexpr int kSpanPack = 4;
struct SpanPacks {
  int64_t count = 0, head = 0, packs = 0;
  int64_t threads() const { return std::max(packs, count - packs * kSpanPack); }
};

// Finds the first offset at which every operand is aligned to a pack. Null operands count as
// aligned.
template <typename... T>
SpanPacks split_span(int64_t count, const T*... operands) {
  for (int64_t head = 0; head < std::min<int64_t>(kSpanPack, count); ++head) {
    const auto is_aligned = [head](const auto* at) {
      return at == nullptr ||
             reinterpret_cast<uintptr_t>(at + head) % (kSpanPack * sizeof(*at)) == 0;
    };
    if ((is_aligned(operands) && ...)) return {count, head, (count - head) / kSpanPack};
  }
  return {count, 0, 0};
}

// Launches kernel(span, arguments...). Kernels use grid-stride loops, so kMax blocks suffice:
// 16 for each of an H200's 132 multiprocessors.
template <typename K, typename... A>
cudaError_t launch_over_span(const SpanPacks& span, cudaStream_t stream, K kernel, A... arguments) {
  constexpr int64_t kMax = 132 * 16;
  return launch_blocks(stream, std::clamp<int64_t>(blocks_for(span.threads(), 256), 1, kMax), 256,
                       kernel, span, arguments...);
}

// Calls f<V>(i) for elements i .. i + V - 1 until the span is covered. V is kSpanPack or 1.
template <typename F>
__device__ inline void for_span(const SpanPacks& s, const F& f) {
  OFSDP_CUDA_LOOP(p, s.packs) { f.template operator()<kSpanPack>(s.head + p * kSpanPack); }
  OFSDP_CUDA_LOOP(k, s.count - s.packs * kSpanPack) {
    f.template operator()<1>(k < s.head ? k : k + s.packs * kSpanPack);
  }
}

// Rounds to `dtype` and back.
__device__ inline float rounded(float v, int32_t dtype) {
  if (dtype == static_cast<int32_t>(DType::kBFloat16)) {
    return to_float(Stored<__nv_bfloat16>::from(v));
  }
  if (dtype == static_cast<int32_t>(DType::kFloat16)) return to_float(Stored<__half>::from(v));
  return v;
}

// Loads V gradient elements from g.src, rounds them to the dtype used for the reduction and adds
// the earlier sum, g.onto, unless it is null. REQUIRES: split_span got g.src and g.onto, or V is 1.
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
