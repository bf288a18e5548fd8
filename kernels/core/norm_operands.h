// Operands of LayerNormalization, RMSNormalization and their relatives, for CPU and CUDA.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/core/shape.h"

namespace ofsdp::kernels {

// The input of ofsdp.LayerNormalizationGrad that is added to dx. Planning adds it
// (importer/passes/passes.h, join_norm_addends).
inline constexpr size_t kNormAddend = 7;

// Returns whether `operand` (scale or bias, broadcast to x) is one row of the axes that are
// normalised, [axis, x.rank()). The number of elements does not tell: with x [4, 4] and axis 1,
// a scale [4, 1] has one element for each row.
inline bool is_one_row(const Shape& operand, const Shape& x, int axis) {
  const int width = x.rank() - axis;
  for (int i = 1; i <= std::max(operand.rank(), width); ++i) {
    const int64_t given = i <= operand.rank() ? operand[operand.rank() - i] : 1;
    if (given != (i <= width ? x[x.rank() - i] : 1)) return false;
  }
  return true;
}

}  // namespace ofsdp::kernels
