// StridedIndex: index arithmetic for loops over strided tensors, planned on the host and used by
// kernels.
//
// It has a shape and, per operand, a stride in elements for each axis: 0 broadcasts, negative is
// allowed. Element i is row-major over the axes. `merge_dense_axes` drops axes of size 1 and merges
// axes that are contiguous in every operand, so dense tensors have one axis. If more than kMaxAxes
// remain, rank is -1 and launchers return cudaErrorNotSupported.
#pragma once

#include <vector>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kMaxOperands = 4;

struct StridedIndex {
  int rank = 0;        // 0: one element
  bool dense = false;  // element i has offset i in every operand
  int64_t numel = 1;
  int64_t shape[kMaxAxes] = {};
  int64_t strides[kMaxOperands][kMaxAxes] = {};
};

// strides[operand][axis].
StridedIndex merge_dense_axes(const std::vector<int64_t>& shape,
                              const std::vector<std::vector<int64_t>>& strides);

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape);
// Strides of an operand of shape `part` that is broadcast to `shape`.
std::vector<int64_t> broadcast_strides(const std::vector<int64_t>& part,
                                       const std::vector<int64_t>& shape);

// Returns `pack` if threads may process packs of `pack` elements, else 1: the last axis must be
// dense or broadcast in every operand, and each row must begin at a multiple of `pack`.
int pack_of(const StridedIndex& walk, int operands, int pack);

// --- In kernels ---

// Stores the offsets of element i in operands 0 .. N - 1. 32-bit indices where possible: 64-bit
// divisions are slow.
template <int N, typename Index>
__host__ __device__ inline void offsets_as(const StridedIndex& w, Index i, int64_t* at) {
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
__host__ __device__ inline void places(const StridedIndex& w, int64_t i, int64_t* at) {
  if (w.dense) {
    for (int k = 0; k < N; ++k) at[k] = i;
    return;
  }
  if (w.numel <= 0xffffffffll) return offsets_as<N>(w, static_cast<uint32_t>(i), at);
  offsets_as<N>(w, static_cast<uint64_t>(i), at);
}

}  // namespace ofsdp::kernels::cuda
