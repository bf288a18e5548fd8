// Reductions over some axes of a dense row-major tensor: Reduction by vector loops for float32 and
// 16-bit floats, folds by plain loops for any number type.
//
// Reduction computes sums, also of |x| and x^2, products, maxima and minima, with float32 partial
// results. The order depends only on the shape: never on threads, and a column's order never on
// other columns. It cuts long sums into blocks of kSumBlock and adds the totals, so that the error
// grows with blocks and not with elements.
//
//   Reduction sum(shape, reduced, ReduceKind::kSum);   // reduced[axis]: is it summed away
//   sum.run(src, dst, scale);                          // dst = scale * sum, kept axes in order
//
// An empty sum is 0, an empty product 1, an empty maximum -infinity; a NaN is both maximum and
// minimum. Made while planning; `run` allocates nothing and fans out over the pool.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/core/element_types.h"
#include "kernels/core/kernel.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::kernels {

enum class ReduceKind { kSum, kSumAbs, kSumSquares, kProduct, kMax, kMin };

class Reduction {
 public:
  Reduction(const Shape& shape, const std::vector<bool>& reduced, ReduceKind kind);
  template <typename T>  // float, BFloat16, Half
  void run(const T* src, T* dst, float scale = 1.0f) const;

 private:
  void columns(const auto* src, float* total, int64_t count) const;
  float element(const auto* src) const;

  StridedLoop kept_;     // operands: src, dst; a row for each kept element
  StridedLoop reduced_;  // operand: src
  ReduceKind kind_;
};

extern template void Reduction::run(const float*, float*, float) const;
extern template void Reduction::run(const BFloat16*, BFloat16*, float) const;
extern template void Reduction::run(const Half*, Half*, float) const;

// Folds reduce one output after the other, for float64, integers and booleans. They add elements in
// rising order, so threads change no bits.
//
//   struct Fold { template <typename T> struct Of { void step(T x); T result(int64_t count); }; };
//   create_fold(fold_of<SumFold>(dtype), dtype, shape, reduced)
//
// Floats are summed in double; integers wrap, which ONNX leaves open. Kernels fan out over the
// pool.

// A running sum's type: double, or an unsigned number that wraps.
template <typename T>
using SumOf = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

template <typename T>
SumOf<T> widened(T x) {
  return static_cast<SumOf<T>>(x);
}

// How an element joins the running value.
struct Added {
  auto operator()(auto sum, auto x) const { return sum + widened(x); }
};
struct Multiplied {
  auto operator()(auto product, auto x) const { return product * widened(x); }
};
struct AddedSize {
  auto operator()(auto sum, auto x) const {
    return sum + (x < decltype(x){0} ? decltype(sum){0} - widened(x) : widened(x));
  }
};
struct AddedSquare {
  auto operator()(auto sum, auto x) const { return sum + widened(x) * widened(x); }
};

// A running value from `start` on, in SumOf<T>.
template <int start, typename Join>
struct WrappingFold {
  template <typename T>
  struct Of {
    SumOf<T> value = start;
    void step(T x) { value = Join()(value, x); }
    T result(int64_t) const { return static_cast<T>(value); }
  };
};
using SumFold = WrappingFold<0, Added>;
using ProductFold = WrappingFold<1, Multiplied>;
using SumAbsFold = WrappingFold<0, AddedSize>;
using SumSquaresFold = WrappingFold<0, AddedSquare>;

struct MeanFold {
  template <typename T>
  struct Of {
    std::conditional_t<std::is_floating_point_v<T>, double, int64_t> sum = 0;
    void step(T x) { sum += static_cast<decltype(sum)>(x); }
    T result(int64_t n) const {
      if constexpr (!std::is_floating_point_v<T>) return static_cast<T>(n == 0 ? 0 : sum / n);
      return static_cast<T>(sum / static_cast<decltype(sum)>(n));
    }
  };
};

// finish(sum), with the sum over elements or their squares, in double.
template <bool squares, double (*finish)(double)>
struct DoubleFold {
  template <typename T>
  struct Of {
    double sum = 0;
    void step(T value) {
      const auto x = static_cast<double>(value);
      sum += squares ? x * x : x;
    }
    T result(int64_t) const { return static_cast<T>(finish(sum)); }
  };
};
using NormFold = DoubleFold<true, std::sqrt>;
using LogSumFold = DoubleFold<false, std::log>;

struct LogSumExpFold {
  template <typename T>
  struct Of {
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0;  // e^(x - max)
    void step(T value) {
      const auto x = static_cast<double>(value);
      if (x > max) {
        sum = sum * std::exp(max - x) + 1;
        max = x;
      } else if (x == max) {
        sum += 1;
      } else {
        sum += std::exp(x - max);
      }
    }
    T result(int64_t) const { return static_cast<T>(max + std::log(sum)); }
  };
};

// An empty maximum is the type's smallest number; a NaN wins.
template <bool largest>
struct ExtremeFold {
  template <typename T>
  struct Of {
    using Limits = std::numeric_limits<T>;
    static constexpr T start() {
      if constexpr (Limits::has_infinity) return largest ? -Limits::infinity() : Limits::infinity();
      return largest ? Limits::lowest() : Limits::max();
    }
    T best = start();
    void step(T x) {
      if (largest ? x > best : x < best) best = x;
      if (x != x) best = x;
    }
    T result(int64_t) const { return best; }
  };
};
using MaxFold = ExtremeFold<true>;
using MinFold = ExtremeFold<false>;

// Kept axes (operands: src, dst) and reduced ones (src) in a row-major tensor.
struct FoldLoops {
  FoldLoops(const Shape& shape, const std::vector<bool>& is_reduced);
  StridedLoop kept, reduced;
};

// Reduces the elements that `reduced` (operand: src) walks from `src` into one number at `dst`.
using FoldOne = void (*)(const StridedLoop& reduced, const std::byte* src, std::byte* dst);

template <typename T, typename Fold>
void fold_one(const StridedLoop& reduced, const std::byte* src, std::byte* dst) {
  typename Fold::template Of<T> fold;
  const int64_t step = reduced.inner_stride(0), n = reduced.inner();
  reduced.for_rows(0, reduced.rows(), [&](const StridedLoop::Offsets& at) {
    const T* x = reinterpret_cast<const T*>(src) + at[0];
    for (int64_t i = 0; i < n; ++i) fold.step(x[i * step]);
  });
  *reinterpret_cast<T*>(dst) = fold.result(reduced.rows() * n);
}

template <typename Fold>
FoldOne fold_of(DType dtype) {
  return with_number(dtype, [](auto zero) -> FoldOne { return fold_one<decltype(zero), Fold>; });
}
// The same for a reduction with wrapping integers.
template <typename Fold>
FoldOne wrapping_fold_of(DType dtype) {
  return with_wrapping_number(dtype,
                              [](auto zero) -> FoldOne { return fold_one<decltype(zero), Fold>; });
}

// Reduces input 0, which has `shape`, over the axes in `reduced`, into output 0.
std::unique_ptr<Kernel> create_fold(FoldOne fold, DType dtype, const Shape& shape,
                                    const std::vector<bool>& reduced);

}  // namespace ofsdp::kernels
