// Loops over the rows of elementwise kernels, built from one function of an element.
//
//   unary_row(x, y, n, f)    y[i] = f(x[i])
//   binary_row(row, f)       y[i] = f(a[i * step_a], b[i * step_b]); steps are 0 or 1 almost always
//   for_loop_rows(loop, f)   f(offsets, n) for the rows of a StridedLoop, shared among the threads
//   run_binary<T, R, row>    binary rows of two broadcast inputs
//
// Rows are always inlined, so an OFSDP_MULTIARCH function that calls one is compiled for each
// instruction set. `ivdep` holds because y may only overlap an input by being that input: without
// it gcc takes its scalar loop for operators that run in place.
//
// The functions fan out over the pool; the cut changes no bits.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/core/kernel.h"
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

// Calls f(offsets, n) for every row of a loop: `n` elements from these offsets in each operand.
// Threads share the rows, or the parts of a single row.
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

// f(BinaryRow<T, R>) for every row.
template <typename T, typename R, typename F>
void for_binary_rows(const StridedLoop& loop, const T* a, const T* b, R* y, const F& f) {
  for_loop_rows(loop, [&](const StridedLoop::Offsets& at, int64_t n) {
    f(BinaryRow<T, R>{a + at[0], loop.inner_stride(0), b + at[1], loop.inner_stride(1), y + at[2],
                      n});
  });
}

template <typename T, typename R, void (*row)(const BinaryRow<T, R>&)>
void run_binary(const StridedLoop& loop, const T* a, const T* b, R* y) {
  for_binary_rows<T, R>(loop, a, b, y, row);
}

}  // namespace ofsdp::kernels
