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

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/through_float.h"

#define OFSDP_INLINE [[gnu::always_inline]] inline

namespace ofsdp {

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
  return {{"loops", accepts, create},
          {"through_float", accepts_through_float<accepts>, create_through_float<create>}};
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

template <typename F, TypeSet types = kFloatTypes>
std::vector<Implementation> unary_kernels() {
  return kernels_by<accepts_unary_of<types>, create_unary_of<F, types>>();
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

template <typename F, TypeSet types = kFloatTypes>
std::vector<Implementation> binary_kernels() {
  return kernels_by<accepts_binary_of<types>, create_binary_of<F, types>>();
}

}  // namespace ofsdp
