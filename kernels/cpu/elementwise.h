// Kernels of elementwise operators, built from one function over a row of elements.
//
//   unary_row(x, y, n, f)    y[i] = f(x[i])
//   binary_row(row, f)       y[i] = f(a[i * step_a], b[i * step_b]); steps are 0 or 1 almost always
//   create_unary<span>       kernel of one input; `span` is a function (const X*, Y*, int64_t n)
//   create_binary<T, R, row> kernel of two broadcast inputs of T and an output of R
//
// The rows are always inlined, so an OFSDP_MULTIARCH function that calls one is compiled for each
// instruction set. `ivdep` is right because the only overlap allowed is y lying exactly on an
// input: without it gcc takes its scalar loop for operators that run in place.
//
// Threads: kernels fan out over the pool; the cut changes no bits.
#pragma once

#include <type_traits>

#include "kernels/core/kernel.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {

inline constexpr int64_t kElementGrain = 16384;  // elements worth a thread

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, int8_t>) return DType::kInt8;
  if constexpr (std::is_same_v<T, int16_t>) return DType::kInt16;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kUInt8;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::kUInt16;
  if constexpr (std::is_same_v<T, uint32_t>) return DType::kUInt32;
  if constexpr (std::is_same_v<T, uint64_t>) return DType::kUInt64;
  if constexpr (std::is_same_v<T, bool>) return DType::kBool;
  return DType::kUndefined;
}

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

template <typename X, typename Y = X>
bool accepts_unary(const Problem& p) {
  return p.in(0).dtype == dtype_of<X>() && p.out(0).dtype == dtype_of<Y>() &&
         p.in(0).layout == p.out(0).layout;
}

template <auto span>
struct UnaryTypes;
template <typename X, typename Y, void (*span)(const X*, Y*, int64_t)>
struct UnaryTypes<span> {
  using In = X;
  using Out = Y;
};

template <auto span>
std::unique_ptr<Kernel> create_unary(const Problem& p) {
  using Types = UnaryTypes<span>;
  return make_kernel([n = p.out(0).numel()](const KernelArgs& args) {
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      span(args.in<typename Types::In>(0) + begin, args.out<typename Types::Out>(0) + begin,
           end - begin);
    });
    return ok_status();
  });
}

template <typename T, typename R = T>
bool accepts_binary(const Problem& p) {
  return p.in(0).dtype == dtype_of<T>() && p.in(1).dtype == dtype_of<T>() &&
         p.out(0).dtype == dtype_of<R>();
}

inline StridedLoop binary_loop(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  return {
      shape,
      {broadcast_strides(p.in(0), shape), broadcast_strides(p.in(1), shape), strides_of(p.out(0))}};
}

// f(BinaryRow<T, R>) for every row, shared among the threads.
template <typename T, typename R, typename F>
void for_binary_rows(const StridedLoop& loop, const T* a, const T* b, R* y, const F& f) {
  const int64_t step_a = loop.inner_stride(0);
  const int64_t step_b = loop.inner_stride(1);
  using Row = BinaryRow<T, R>;
  if (loop.rows() == 1) {
    parallel_for(loop.inner(), kElementGrain, [&](int64_t begin, int64_t end) {
      f(Row{a + begin * step_a, step_a, b + begin * step_b, step_b, y + begin, end - begin});
    });
    return;
  }
  const int64_t grain = kElementGrain / std::max<int64_t>(loop.inner(), 1) + 1;
  parallel_for(loop.rows(), grain, [&](int64_t begin, int64_t end) {
    loop.for_rows(begin, end, [&](const StridedLoop::Offsets& at) {
      f(Row{a + at[0], step_a, b + at[1], step_b, y + at[2], loop.inner()});
    });
  });
}

template <typename T, typename R, void (*row)(const BinaryRow<T, R>&)>
void run_binary(const StridedLoop& loop, const KernelArgs& args) {
  for_binary_rows<T, R>(loop, args.in<T>(0), args.in<T>(1), args.out<R>(0), row);
}

template <typename T, typename R, void (*row)(const BinaryRow<T, R>&)>
std::unique_ptr<Kernel> create_binary(const Problem& p) {
  return make_kernel([loop = binary_loop(p)](const KernelArgs& args) {
    run_binary<T, R, row>(loop, args);
    return ok_status();
  });
}

}  // namespace ofsdp::kernels
