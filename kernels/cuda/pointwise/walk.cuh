// The device's half of walk.h.
#pragma once

#include "kernels/cuda/pointwise/walk.h"

namespace ofsdp::kernels::cuda {

// The place of element i in operands 0 .. N - 1. 64-bit divisions are slow: they are left for what
// needs them.
template <int N, typename Index>
__host__ __device__ inline void places_as(const Walk& w, Index i, int64_t* at) {
  for (int k = 0; k < N; ++k) at[k] = 0;
  for (int axis = w.rank - 1; axis > 0; --axis) {
    const Index size = static_cast<Index>(w.shape[axis]);
    const Index next = i / size;
    const int64_t index = static_cast<int64_t>(i - next * size);
    for (int k = 0; k < N; ++k) at[k] += index * w.strides[k][axis];
    i = next;
  }
  for (int k = 0; k < N && w.rank > 0; ++k) at[k] += static_cast<int64_t>(i) * w.strides[k][0];
}

template <int N>
__host__ __device__ inline void places(const Walk& w, int64_t i, int64_t* at) {
  if (w.dense) {
    for (int k = 0; k < N; ++k) at[k] = i;
    return;
  }
  if (w.numel <= 0xffffffffll) return places_as<N>(w, static_cast<uint32_t>(i), at);
  places_as<N>(w, static_cast<uint64_t>(i), at);
}

}  // namespace ofsdp::kernels::cuda
