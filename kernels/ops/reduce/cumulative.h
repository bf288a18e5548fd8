// What CumSum and CumProd share: running results along an axis with ONNX's attributes exclusive
// (the element itself is left out; the first result is the neutral element) and reverse (from the
// end). The axis is input 1, known while planning.
//
// Owns: nothing. Threads: kernels fan out over the pool, a line never over two threads. Errors:
// kInput.
#pragma once

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/cpu/lines.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

Result<std::vector<TensorDesc>> infer_cumulative(const InferContext& c);
bool accepts_cumulative(const Problem& p);
std::vector<SampleCase> cumulative_samples();

struct Cumulation {
  Lines lines;
  bool exclusive, reverse;

  // Where the result of step k is written, and the element it takes in.
  int64_t place(int64_t k) const { return reverse ? lines.n - 1 - k : k; }
};
Cumulation cumulation(const Attributes& attributes, const Shape& shape, int64_t axis);

template <typename F>
std::vector<RefTensor> cumulative_reference(const ReferenceContext& c, double neutral,
                                            const F& combine) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const auto axis = static_cast<int64_t>(c.inputs[1].values[0]);
  const Cumulation r = cumulation(c.attributes, y.desc.shape, axis);
  for (int64_t line = 0; line < r.lines.count(); ++line) {
    double running = neutral;
    for (int64_t k = 0; k < r.lines.n; ++k) {
      double& v = y.values[static_cast<size_t>(
          r.lines.at(line / r.lines.inner, r.place(k), line % r.lines.inner))];
      const double next = combine(running, v);
      v = r.exclusive ? running : next;
      running = next;
    }
  }
  return {y};
}

template <typename T, typename F>
[[gnu::always_inline]] inline void cumulate_line(const Cumulation& r, const T* x, T* y, T running,
                                                 const F& combine) {
  for (int64_t k = 0; k < r.lines.n; ++k) {
    const int64_t at = r.place(k) * r.lines.inner;
    const T next = wrapping(running, x[at], combine);
    y[at] = r.exclusive ? running : next;
    running = next;
  }
}

// Neighbouring lines side by side.
template <typename T, typename F>
[[gnu::always_inline]] inline void cumulate_block(const Cumulation& r, const T* x, T* y,
                                                  int64_t count, T neutral, const F& combine) {
  T running[kLineBlock];
  std::fill_n(running, count, neutral);
  for (int64_t k = 0; k < r.lines.n; ++k) {
    const T* from = x + r.place(k) * r.lines.inner;
    T* to = y + r.place(k) * r.lines.inner;
    for (int64_t j = 0; j < count; ++j) {
      const T next = wrapping(running[j], from[j], combine);
      to[j] = r.exclusive ? running[j] : next;
      running[j] = next;
    }
  }
}

template <typename Combine, int neutral>
std::unique_ptr<Kernel> create_cumulative(const Problem& p) {
  const int64_t axis = (*int_values(*p.constant(1)))[0];
  const Cumulation r = cumulation(p.attributes, p.in(0).shape, axis);
  return with_number(p.in(0).dtype, [r](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>)
      return nullptr;  // not accepted
    else
      return make_kernel([r](const KernelArgs& a) {
        for_line_blocks(r.lines, [&](int64_t o, int64_t begin, int64_t end) {
          const int64_t at = r.lines.at(o, 0, begin);
          if (end - begin == 1) {
            cumulate_line(r, a.in<T>(0) + at, a.out<T>(0) + at, T{neutral}, Combine{});
          } else {
            cumulate_block(r, a.in<T>(0) + at, a.out<T>(0) + at, end - begin, T{neutral},
                           Combine{});
          }
        });
        return ok_status();
      });
  });
}

}  // namespace ofsdp::kernels::ops
