// Kernels of pointwise operators in every dtype, from one formula.
//
//   struct Elu {                                        the formula, of any C++ number
//     float alpha;
//     explicit Elu(const Attributes& a) : alpha(a.f("alpha", 1)) {}      or no constructor at all
//     template <typename T>
//     OFSDP_INLINE T operator()(T x) const { ... }
//   };
//   .cpu = unary_kernels<Elu>()                         y = Elu(x), float types
//   .cpu = binary_kernels<Add, kNumberTypes>()          y = Add(a, b), broadcast, all numbers
//
// float32 loops are compiled for each instruction set, so formulas take functions from
// kernels/cpu/real_math.h; float64 and integers are plain loops; the 16-bit floats go through
// float32. A formula of bool gives a bool tensor. A formula that is only right in a part of float32
// has a member `vector_fits(float)`, and `elsewhere(float)` for the other values.
//
// Formulas live in anonymous namespaces: target_clones of a template that other files instantiate
// as well would be defined twice. Threads: as Kernel. Errors: none.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/float_width.h"
#include "kernels/cpu/in_float32.h"

#define OFSDP_INLINE [[gnu::always_inline]] inline

namespace ofsdp::kernels {

using TypeSet = uint32_t;
constexpr TypeSet type_bit(DType dtype) { return TypeSet{1} << static_cast<unsigned>(dtype); }

// The 16-bit floats belong to every set with float32.
inline constexpr TypeSet kFloatTypes = type_bit(DType::kFloat32) | type_bit(DType::kFloat64);
inline constexpr TypeSet kSignedIntegers = type_bit(DType::kInt8) | type_bit(DType::kInt16) |
                                           type_bit(DType::kInt32) | type_bit(DType::kInt64);
inline constexpr TypeSet kIntegerTypes = kSignedIntegers | type_bit(DType::kUInt8) |
                                         type_bit(DType::kUInt16) | type_bit(DType::kUInt32) |
                                         type_bit(DType::kUInt64);
inline constexpr TypeSet kNumberTypes = kFloatTypes | kIntegerTypes;
inline constexpr TypeSet kBoolType = type_bit(DType::kBool);

constexpr bool is_16_bit_float(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}
constexpr bool in_set(TypeSet types, DType dtype) { return (types & type_bit(dtype)) != 0; }

template <typename F>
F make_formula(const Attributes& attributes) {
  if constexpr (std::is_constructible_v<F, const Attributes&>) {
    return F(attributes);
  } else {
    return F{};
  }
}

template <typename T, typename Made>
using FormulaResult = std::conditional_t<std::is_same_v<Made, bool>, bool, T>;
template <typename F, typename T>
using UnaryResult = FormulaResult<T, std::invoke_result_t<const F&, T>>;
template <typename F, typename T>
using BinaryResult = FormulaResult<T, std::invoke_result_t<const F&, T, T>>;

// kernel_for<types>(dtype, f): f(T{}) for the type of `dtype`, compiled only for those in the set.
template <TypeSet types, typename F>
std::unique_ptr<Kernel> kernel_for(DType dtype, const F& f) {
  return with_number(dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    if constexpr (in_set(types, dtype_of<decltype(zero)>())) {
      return f(zero);
    } else {
      return nullptr;
    }
  });
}

// An implementation and the same for the 16-bit floats.
template <bool (*accepts)(const Problem&), std::unique_ptr<Kernel> (*create)(const Problem&)>
std::vector<Implementation> kernels_by() {
  return {{"loops", accepts, create}, in_float32<accepts, create>()};
}

// --- unary ---

template <typename F>
OFSDP_MULTIARCH bool all_fit(const float* x, int64_t n) {
  int misfits = 0;
  for (int64_t i = 0; i < n; ++i) misfits |= F::vector_fits(x[i]) ? 0 : 1;
  return misfits == 0;
}

template <typename F, typename Y>
OFSDP_MULTIARCH void float_span(const float* x, Y* y, int64_t n, const F& f) {
  unary_row(x, y, n, f);
}

template <typename F, typename T, typename Y>
void pointwise_span(const T* x, Y* y, int64_t n, const F& f) {
  if constexpr (std::is_same_v<T, float>) {
    if constexpr (requires { F::vector_fits(1.0f); }) {
      if (!all_fit<F>(x, n)) {
        for (int64_t i = 0; i < n; ++i) y[i] = F::vector_fits(x[i]) ? f(x[i]) : F::elsewhere(x[i]);
        return;
      }
    }
    float_span(x, y, n, f);
  } else {
    unary_row(x, y, n, [&f](T v) { return static_cast<Y>(f(v)); });
  }
}

template <TypeSet types>
bool accepts_unary_of(const Problem& p) {
  return in_set(types, p.in(0).dtype) && p.in(0).layout == p.out(0).layout;
}

template <typename F, TypeSet types>
std::unique_ptr<Kernel> create_unary_of(const Problem& p) {
  return kernel_for<types>(p.in(0).dtype, [&p](auto zero) {
    using T = decltype(zero);
    using Y = UnaryResult<F, T>;
    return make_kernel(
        [n = p.out(0).numel(), f = make_formula<F>(p.attributes)](const KernelArgs& a) {
          parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
            pointwise_span(a.in<T>(0) + begin, a.out<Y>(0) + begin, end - begin, f);
          });
          return ok_status();
        });
  });
}

// 16-bit floats, a block at a time: widened, computed and rounded in the first-level cache.
inline constexpr int64_t kWideBlock = 1024;

// One operand of a block; steps are those of BinaryRow.
struct WideOperand {
  alignas(64) std::array<float, kWideBlock> values;
  int64_t step = 1;

  void load(DType dtype, const uint16_t* src, int64_t step_of_src, int64_t begin, int64_t n) {
    step = step_of_src == 0 ? 0 : 1;
    if (step_of_src <= 1) {
      widen(dtype, src + begin * step_of_src, values.data(), step_of_src == 0 ? 1 : n);
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      widen(dtype, src + (begin + i) * step_of_src, &values[static_cast<size_t>(i)], 1);
    }
  }
};

template <typename Y>
void store_wide(const Y* values, DType dtype, void* dst, int64_t begin, int64_t n) {
  if constexpr (std::is_same_v<Y, float>) {
    narrow(values, dtype, static_cast<uint16_t*>(dst) + begin, n);
  } else {
    std::copy(values, values + n, static_cast<Y*>(dst) + begin);
  }
}

inline bool accepts_unary_16(const Problem& p) {
  return is_16_bit_float(p.in(0).dtype) && p.in(0).layout == p.out(0).layout;
}

template <typename F>
std::unique_ptr<Kernel> create_unary_16(const Problem& p) {
  using Y = UnaryResult<F, float>;
  return make_kernel([n = p.out(0).numel(), dtype = p.in(0).dtype,
                      f = make_formula<F>(p.attributes)](const KernelArgs& a) {
    parallel_for(n, kElementGrain, [&](int64_t from, int64_t to) {
      WideOperand x;
      alignas(64) std::array<Y, kWideBlock> y;
      for (int64_t begin = from; begin < to; begin += kWideBlock) {
        const int64_t count = std::min(kWideBlock, to - begin);
        x.load(dtype, a.in<uint16_t>(0), 1, begin, count);
        pointwise_span(x.values.data(), y.data(), count, f);
        store_wide(y.data(), dtype, a.outputs[0].data, begin, count);
      }
    });
    return ok_status();
  });
}

template <typename F, TypeSet types = kFloatTypes>
std::vector<Implementation> unary_kernels() {
  std::vector<Implementation> all = {{"loops", accepts_unary_of<types>, create_unary_of<F, types>}};
  if constexpr (in_set(types, DType::kFloat32)) {
    all.push_back({"blocks", accepts_unary_16, create_unary_16<F>});
  }
  return all;
}

// --- binary ---

template <typename F, typename Y>
OFSDP_MULTIARCH void float_row(const BinaryRow<float, Y>& row, const F& f) {
  binary_row(row, f);
}

template <typename F, typename T, typename Y>
void pointwise_row(const BinaryRow<T, Y>& row, const F& f) {
  if constexpr (std::is_same_v<T, float>) {
    float_row(row, f);
  } else {
    binary_row(row, [&f](T a, T b) { return static_cast<Y>(f(a, b)); });
  }
}

template <TypeSet types>
bool accepts_binary_of(const Problem& p) {
  return in_set(types, p.in(0).dtype) && p.in(0).dtype == p.in(1).dtype;
}

template <typename F, TypeSet types>
std::unique_ptr<Kernel> create_binary_of(const Problem& p) {
  return kernel_for<types>(p.in(0).dtype, [&p](auto zero) {
    using T = decltype(zero);
    using Y = BinaryResult<F, T>;
    return make_kernel(
        [loop = binary_loop(p), f = make_formula<F>(p.attributes)](const KernelArgs& a) {
          for_binary_rows<T, Y>(loop, a.in<T>(0), a.in<T>(1), a.out<Y>(0),
                                [&f](const BinaryRow<T, Y>& row) { pointwise_row(row, f); });
          return ok_status();
        });
  });
}

inline bool accepts_binary_16(const Problem& p) {
  return is_16_bit_float(p.in(0).dtype) && p.in(0).dtype == p.in(1).dtype;
}

template <typename Y, typename F>
void wide_row(const BinaryRow<uint16_t, Y>& row, DType dtype, const F& f) {
  using Result = std::conditional_t<std::is_same_v<Y, uint16_t>, float, Y>;
  WideOperand a, b;
  alignas(64) std::array<Result, kWideBlock> y;
  for (int64_t begin = 0; begin < row.n; begin += kWideBlock) {
    const int64_t count = std::min(kWideBlock, row.n - begin);
    a.load(dtype, row.a, row.step_a, begin, count);
    b.load(dtype, row.b, row.step_b, begin, count);
    pointwise_row(
        BinaryRow<float, Result>{a.values.data(), a.step, b.values.data(), b.step, y.data(), count},
        f);
    store_wide(y.data(), dtype, row.y, begin, count);
  }
}

template <typename F>
std::unique_ptr<Kernel> create_binary_16(const Problem& p) {
  using Y = std::conditional_t<std::is_same_v<BinaryResult<F, float>, bool>, bool, uint16_t>;
  return make_kernel([loop = binary_loop(p), dtype = p.in(0).dtype,
                      f = make_formula<F>(p.attributes)](const KernelArgs& a) {
    for_binary_rows<uint16_t, Y>(
        loop, a.in<uint16_t>(0), a.in<uint16_t>(1), a.out<Y>(0),
        [&f, dtype](const BinaryRow<uint16_t, Y>& row) { wide_row(row, dtype, f); });
    return ok_status();
  });
}

template <typename F, TypeSet types = kFloatTypes>
std::vector<Implementation> binary_kernels() {
  std::vector<Implementation> all = {
      {"loops", accepts_binary_of<types>, create_binary_of<F, types>}};
  if constexpr (in_set(types, DType::kFloat32)) {
    all.push_back({"blocks", accepts_binary_16, create_binary_16<F>});
  }
  return all;
}

}  // namespace ofsdp::kernels
