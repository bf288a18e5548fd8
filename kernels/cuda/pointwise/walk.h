// Index arithmetic of loops over tensors with strides, for the host that plans and the kernels that
// run.
//
// A Walk is a shape and, per operand, the stride of each axis in elements (0: broadcast; it may be
// negative). `collapsed` drops axes of size 1 and joins axes that follow each other in memory in
// every operand, so that a loop over dense tensors has one axis. Element i of the walk is row-major
// over its axes.
//
// Errors: more than kMaxAxes axes after collapsing: rank is -1, and launchers refuse.
#pragma once

#include <vector>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kMaxOperands = 4;

struct Walk {
  int rank = 0;        // 0: one element
  bool dense = false;  // element i of the walk is the i-th of every operand: no index arithmetic
  int64_t numel = 1;
  int64_t shape[kMaxAxes] = {};
  int64_t strides[kMaxOperands][kMaxAxes] = {};
};

// strides[operand][axis of shape]
Walk collapsed(const std::vector<int64_t>& shape, const std::vector<std::vector<int64_t>>& strides);

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape);
// For an operand of shape `part` broadcast to `shape`.
std::vector<int64_t> broadcast_strides(const std::vector<int64_t>& part,
                                       const std::vector<int64_t>& shape);

// How many elements may go at once, 1 or `most`: the last axis is dense or broadcast in every
// operand, and every row begins at a multiple of `most`.
int pack_of(const Walk& walk, int operands, int most);

}  // namespace ofsdp::kernels::cuda
