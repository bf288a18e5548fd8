// Kernels of operators that fold any number of broadcast inputs: y = f(f(x0, x1), x2), ...
//
//   variadic_kernels<Max, kNumberTypes>()     a formula of two numbers (kernels/cpu/pointwise.h)
//
// A formula with a member `finish(y, count)` is applied to the result once more. float16 and
// bfloat16 are folded in float32 and rounded once. One pass over the output an input; the order is
// that of the inputs. Output 0 may lie on input 0 or 1.
//
// Threads: as Kernel.
#pragma once

#include "kernels/cpu/pointwise.h"

namespace ofsdp::kernels {

// Loop k joins y (or input 0 in the first) and input k + 1.
inline std::vector<StridedLoop> fold_loops(const Problem& p) {
  const TensorDesc& y = p.out(0);
  std::vector<StridedLoop> loops;
  for (size_t i = 1; i < p.inputs.size(); ++i) {
    const auto left = i == 1 ? broadcast_strides(p.in(0), y.shape) : strides_of(y);
    loops.push_back({y.shape, {left, broadcast_strides(p.in(i), y.shape), strides_of(y)}});
  }
  return loops;
}

template <typename F>
struct Finish {
  F f;
  double count;
  template <typename T>
  OFSDP_INLINE T operator()(T y) const {
    return f.finish(y, static_cast<T>(count));
  }
};

template <typename F, typename T>
void fold(const std::vector<StridedLoop>& loops, const KernelArgs& a, int64_t n, const F& f) {
  T* y = a.out<T>(0);
  if (loops.empty() && a.in<T>(0) != y) std::copy_n(a.in<T>(0), n, y);
  for (size_t k = 0; k < loops.size(); ++k) {
    const T* left = k == 0 ? a.in<T>(0) : y;
    for_binary_rows<T, T>(loops[k], left, a.in<T>(k + 1), y,
                          [&f](const BinaryRow<T>& row) { pointwise_row(row, f); });
  }
  if constexpr (requires { f.finish(T{}, T{}); }) {
    const Finish<F> last{f, static_cast<double>(loops.size() + 1)};
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      pointwise_span(y + begin, y + begin, end - begin, last);
    });
  }
}

template <TypeSet types>
bool accepts_fold(const Problem& p) {
  return in_set(types, p.in(0).dtype) && p.all_dtype(p.in(0).dtype) &&
         (p.inputs.size() > 1 || p.in(0).layout == p.out(0).layout);
}

template <typename F, TypeSet types>
std::unique_ptr<Kernel> create_fold(const Problem& p) {
  return kernel_for<types>(p.in(0).dtype, [&p](auto zero) {
    return make_kernel([loops = fold_loops(p), n = p.out(0).numel(),
                        f = make_formula<F>(p.attributes)](const KernelArgs& a) {
      fold<F, decltype(zero)>(loops, a, n, f);
      return ok_status();
    });
  });
}

template <typename F, TypeSet types>
std::vector<Implementation> variadic_kernels() {
  return kernels_by<accepts_fold<types>, create_fold<F, types>>();
}

}  // namespace ofsdp::kernels
