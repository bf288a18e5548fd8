// Loops over tensors on all threads: elementwise rows, lines along an axis, strided copies. Cuts
// between threads change no bits.
//
//   unary_row(x, y, n, f)    y[i] = f(x[i])
//   binary_row(row, f)       y[i] = f(a[i * step_a], b[i * step_b]); steps are 0 or 1 almost always
//   for_loop_rows(loop, f)   f(offsets, n) for each row in a StridedLoop
//   run_binary<T, R, row>    binary rows from two broadcast inputs
//
// Rows are always inlined, so an OFSDP_MULTIARCH function that calls one has it in each instruction
// set. `ivdep` holds because y may only overlap an input by being that input; without it gcc takes
// a scalar loop for operators that run in place.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/core/tensor.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

template <typename X, typename Y, typename F>
[[gnu::always_inline]] inline void unary_row(const X* x, Y* y, int64_t n, const F& f) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

template <typename T, typename R = T>
struct BinaryRow {
  const T* a;
  int64_t step_a;
  const T* b;
  int64_t step_b;
  R* y;
  int64_t n;
};

template <typename T, typename R, typename F>
[[gnu::always_inline]] inline void binary_row(const BinaryRow<T, R>& row, const F& f) {
  const auto [a, step_a, b, step_b, y, n] = row;
  if (step_a == 1 && step_b == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  } else if (step_a == 1 && step_b == 0) {
    const T q = *b;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f(a[i], q);
  } else if (step_a == 0 && step_b == 1) {
    const T p = *a;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = f(p, b[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = f(a[i * step_a], b[i * step_b]);
  }
}

inline StridedLoop binary_loop(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  return {
      shape,
      {broadcast_strides(p.in(0), shape), broadcast_strides(p.in(1), shape), strides_of(p.out(0))}};
}

// Calls f(offsets, n) for every row: `n` elements from these offsets in each operand. Threads share
// the rows, or a single row's parts.
void for_loop_rows(const StridedLoop& loop, const auto& f) {
  if (loop.rows() == 1) {
    parallel_for(loop.inner(), kElementGrain, [&](int64_t begin, int64_t end) {
      StridedLoop::Offsets at;
      for (size_t k = 0; k < at.size(); ++k) at[k] = begin * loop.inner_stride(k);
      f(static_cast<const StridedLoop::Offsets&>(at), end - begin);
    });
    return;
  }
  const int64_t grain = kElementGrain / std::max<int64_t>(loop.inner(), 1) + 1;
  parallel_for(loop.rows(), grain, [&](int64_t begin, int64_t end) {
    loop.for_rows(begin, end, [&](const StridedLoop::Offsets& at) { f(at, loop.inner()); });
  });
}

template <typename T, typename R, void (*row)(const BinaryRow<T, R>&)>
void run_binary(const StridedLoop& loop, const T* a, const T* b, R* y) {
  for_loop_rows(loop, [&](const StridedLoop::Offsets& at, int64_t n) {
    row({a + at[0], loop.inner_stride(0), b + at[1], loop.inner_stride(1), y + at[2], n});
  });
}

// A tensor along one axis: [outer, n, inner], or outer * inner lines with n elements, `inner`
// apart. For operators that work line by line: ArgMax, CumSum, TopK, ScatterElements.
//
//   const Lines lines = lines_of(shape, axis);      // REQUIRES: 0 <= axis < rank
//   for_line_blocks(lines, [](int64_t o, int64_t begin, int64_t end) { ... });
//
// for_line_blocks passes every (o, inner index) once, at most kLineBlock neighbours together, so
// that a block's rows fit arrays on the stack.

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

// Copies a tensor between strides: slices, concatenation, transposes, expansion, layout changes.
// Moves elements with 1, 2, 4 or 8 bytes without reading their values.
//
// Planning chooses: whole rows if they are contiguous on both sides; square tiles for a
// transposition, so that both sides stay in cache; else element by element.
class StridedCopy {
 public:
  // Strides in elements, one for each axis in `shape`; dst must not overlap itself or src.
  StridedCopy(const Shape& shape, const std::vector<int64_t>& src_strides,
              const std::vector<int64_t>& dst_strides, size_t element_bytes);

  void run(const std::byte* src, std::byte* dst) const;

 private:
  template <typename T>
  void run_as(const T* src, T* dst) const;
  template <typename T>
  void run_rows(const T* src, T* dst) const;
  template <typename T>
  void run_tiles(const T* src, T* dst) const;

  StridedLoop loop_;          // operands: src, dst
  StridedLoop::Axis across_;  // if tiled: the outer axis along which src is contiguous
  bool tiled_ = false;
  size_t element_bytes_;
};

// Copies input 0 from byte `src_offset` to output 0 from byte `dst_offset`.
std::unique_ptr<Kernel> make_copy_kernel(StridedCopy copy, int64_t src_offset = 0,
                                         int64_t dst_offset = 0);

}  // namespace ofsdp::kernels
