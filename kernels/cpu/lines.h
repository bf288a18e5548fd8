// A tensor seen along one axis: [outer, n, inner], that is outer * inner lines of n elements, each
// `inner` apart. For operators that work line by line: ArgMax, CumSum, TopK, ScatterElements.
//
//   const Lines lines = lines_of(shape, axis);      // axis already normal, 0 <= axis < rank
//   for_line_blocks(lines, [](int64_t o, int64_t begin, int64_t end) { ... });
//
// for_line_blocks gives every (o, inner index) once, at most kLineBlock neighbours together, so
// that a block's rows are short enough for arrays on the stack. The assignment to threads changes
// no bits.
//
// for_line_blocks fans out over the pool.
#pragma once

#include <algorithm>

#include "kernels/core/shape.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {

struct Lines {
  int64_t outer = 1;
  int64_t n = 1;
  int64_t inner = 1;

  int64_t count() const { return outer * inner; }
  int64_t at(int64_t o, int64_t k, int64_t j) const { return (o * n + k) * inner + j; }
};

inline constexpr int64_t kLineBlock = 256;

inline Lines lines_of(const Shape& shape, int axis) {
  return {shape.numel(0, axis), shape[axis], shape.numel(axis + 1, shape.rank())};
}

// Takes ONNX's axis, which may be negative; infer has checked it.
inline Lines lines_along(const Shape& shape, int64_t axis) {
  return lines_of(shape, static_cast<int>(axis < 0 ? axis + shape.rank() : axis));
}

void for_line_blocks(const Lines& lines, const auto& f) {
  const int64_t blocks = (lines.inner + kLineBlock - 1) / kLineBlock;
  const int64_t work = std::max<int64_t>(lines.n * std::min(lines.inner, kLineBlock), 1);
  parallel_each(lines.outer * blocks, kElementGrain / work + 1, [&](int64_t item) {
    const int64_t first = item % blocks * kLineBlock;
    f(item / blocks, first, std::min(first + kLineBlock, lines.inner));
  });
}

}  // namespace ofsdp::kernels
