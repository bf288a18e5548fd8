// Reductions of any number type by plain loops, one output after the other: what float64, integers
// and booleans take; float32 has kernels/cpu/reduce.h. Order of elements: rising, so the bits do
// not depend on threads.
//
//   struct Fold { template <typename T> struct Of { void step(T x); T result(int64_t count); }; };
//
// Floats are summed in double; whole numbers wrap, as ONNX leaves it. Ownership: values. Threads:
// kernels fan out over the pool.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/core/kernel.h"
#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels {

// f(T{}) with the C++ type of a number type other than the 16-bit floats.
template <typename F>
auto with_number(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    case DType::kUInt32:
      return f(uint32_t{});
    case DType::kUInt64:
      return f(uint64_t{});
    case DType::kBool:
      return f(bool{});
    default:
      OFSDP_CHECK(dtype == DType::kFloat64, "no number type {}", dtype_name(dtype));
      return f(double{});
  }
}

// What sums are kept in: double, or an unsigned number that wraps.
template <typename T>
using SumOf = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

template <typename T>
SumOf<T> widened(T x) {
  return static_cast<SumOf<T>>(x);
}

struct SumFold {
  template <typename T>
  struct Of {
    SumOf<T> sum = 0;
    void step(T x) { sum += widened(x); }
    T result(int64_t) const { return static_cast<T>(sum); }
  };
};

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

struct ProductFold {
  template <typename T>
  struct Of {
    SumOf<T> product = 1;
    void step(T x) { product *= widened(x); }
    T result(int64_t) const { return static_cast<T>(product); }
  };
};

struct SumAbsFold {
  template <typename T>
  struct Of {
    SumOf<T> sum = 0;
    void step(T x) { sum += x < T{0} ? SumOf<T>{0} - widened(x) : widened(x); }
    T result(int64_t) const { return static_cast<T>(sum); }
  };
};

struct SumSquaresFold {
  template <typename T>
  struct Of {
    SumOf<T> sum = 0;
    void step(T x) { sum += widened(x) * widened(x); }
    T result(int64_t) const { return static_cast<T>(sum); }
  };
};

struct NormFold {
  template <typename T>
  struct Of {
    double sum = 0;
    void step(T x) { sum += static_cast<double>(x) * static_cast<double>(x); }
    T result(int64_t) const { return static_cast<T>(std::sqrt(sum)); }
  };
};

struct LogSumFold {
  template <typename T>
  struct Of {
    double sum = 0;
    void step(T x) { sum += static_cast<double>(x); }
    T result(int64_t) const { return static_cast<T>(std::log(sum)); }
  };
};

struct LogSumExpFold {
  template <typename T>
  struct Of {
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0;  // of e^(x - max)
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

// An empty maximum is the smallest number there is; a NaN wins.
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

// The kept axes (operands: src, dst) and the reduced ones (src) of a row-major tensor.
struct FoldLoops {
  FoldLoops(const Shape& shape, const std::vector<bool>& reduced);
  StridedLoop kept, reduced;
};

template <typename T, typename Fold>
std::unique_ptr<Kernel> create_fold_of(const Shape& shape, const std::vector<bool>& reduced) {
  return make_kernel([loops = FoldLoops(shape, reduced)](const KernelArgs& a) {
    const int64_t count = loops.reduced.rows() * loops.reduced.inner();
    auto one = [&](const T* src, T* dst) {
      typename Fold::template Of<T> fold;
      loops.reduced.for_rows(0, loops.reduced.rows(), [&](const StridedLoop::Offsets& at) {
        const int64_t step = loops.reduced.inner_stride(0);
        for (int64_t i = 0; i < loops.reduced.inner(); ++i) fold.step(src[at[0] + i * step]);
      });
      *dst = fold.result(count);
    };
    parallel_for(loops.kept.rows(), 4096 / (count + 1) + 1, [&](int64_t begin, int64_t end) {
      loops.kept.for_rows(begin, end, [&](const StridedLoop::Offsets& at) {
        for (int64_t i = 0; i < loops.kept.inner(); ++i) {
          one(a.in<T>(0) + at[0] + i * loops.kept.inner_stride(0), a.out<T>(0) + at[1] + i);
        }
      });
    });
    return ok_status();
  });
}

template <typename Fold>
std::unique_ptr<Kernel> create_fold(DType dtype, const Shape& shape,
                                    const std::vector<bool>& reduced) {
  return with_number(dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    return create_fold_of<decltype(zero), Fold>(shape, reduced);
  });
}

}  // namespace ofsdp::kernels
