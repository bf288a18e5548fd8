// Pointwise kernels for every dtype, from one formula each.
//
//   unary_loops<OFSDP_X(relu_of(x)), kNumberTypes>()
//   unary_loops<OFSDP_X(elu_of<M>(x, k.a))>()             float types
//   binary_loops<OFSDP_AB(a < b), kNumberTypes>()         broadcast, to bool
//   pointwise_kernels("Elu", loops)                       for OpDef::cpu
//
// OFSDP_X, OFSDP_AB and OFSDP_DX make a lambda from an expression in one or two C++ numbers with
// the same type; in k, the attributes' numbers (kernels/formulas/numbers.h), in the type in which
// the expression computes; and in M, which has <cmath>'s functions (real_math.h). The result has
// that type or is bool.
//
// float32 loops compile for each instruction set, with that set's M; other types get one plain
// loop. 16-bit floats go through float32, a block at a time. A loop is a function over untyped
// rows, so the kernel around it compiles once, not once for each formula.
//
// gcc 12 takes a bare > for the template argument's end, so the macros add parentheses.
#pragma once

#include <array>
#include <concepts>
#include <string>

#include "kernels/base/formula.h"
#include "kernels/core/chain_op.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/real_math.h"
#include "kernels/formulas/numbers.h"

#define OFSDP_FORMULA(...)                  \
  __attribute__((always_inline)) {          \
    using M [[maybe_unused]] = decltype(m); \
    return (__VA_ARGS__);                   \
  }
#define OFSDP_X(...) \
  []([[maybe_unused]] auto m, auto x, [[maybe_unused]] auto k) OFSDP_FORMULA(__VA_ARGS__)
#define OFSDP_AB(...) \
  []([[maybe_unused]] auto m, auto a, auto b, [[maybe_unused]] auto k) OFSDP_FORMULA(__VA_ARGS__)
#define OFSDP_DX(...) \
  []([[maybe_unused]] auto m, auto d, auto x, [[maybe_unused]] auto k) OFSDP_FORMULA(__VA_ARGS__)

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

constexpr bool in_set(TypeSet types, DType dtype) { return (types & type_bit(dtype)) != 0; }

// --- rows ---

// y[i] = f(a[i * step_a], b[i * step_b]); steps are in elements. Unary loops ignore b and take
// step_a 0 or 1.
struct PointwiseRow {
  const void* a;
  int64_t step_a;
  const void* b;
  int64_t step_b;
  void* y;
  int64_t n;
};
using RowLoop = void (*)(const PointwiseRow& row, const Numbers& numbers);

// A formula's loops by dtype; null: none.
struct PointwiseLoops {
  int operands = 1;
  bool to_bool = false;
  std::array<RowLoop, kDTypes> of = {};

  RowLoop& operator[](DType dtype) { return of[static_cast<size_t>(dtype)]; }
  RowLoop operator[](DType dtype) const { return of[static_cast<size_t>(dtype)]; }
};
// Returns a's loops, and b's for other types.
PointwiseLoops joined_loops(PointwiseLoops a, const PointwiseLoops& b);

// --- a formula's loops ---

template <typename T>
struct NumbersOf {
  T a, b;
};
// Integers compare with numbers in double.
template <typename T>
using NumberOf = std::conditional_t<std::is_floating_point_v<T>, T, double>;

template <typename T, typename Made>
using FormulaResult = std::conditional_t<std::is_same_v<Made, bool>, bool, T>;
template <auto formula, typename T>
using UnaryResult = FormulaResult<T, decltype(formula(FloatMath{}, T{}, NumbersOf<NumberOf<T>>{}))>;
template <auto formula, typename T>
using BinaryResult =
    FormulaResult<T, decltype(formula(FloatMath{}, T{}, T{}, NumbersOf<NumberOf<T>>{}))>;

template <typename T>
NumbersOf<NumberOf<T>> numbers_in(const Numbers& numbers) {
  return {static_cast<NumberOf<T>>(numbers.a), static_cast<NumberOf<T>>(numbers.b)};
}

template <auto formula, typename T, typename M = FloatMath>
[[gnu::always_inline]] inline void unary_loop(const PointwiseRow& row, const Numbers& numbers) {
  using Y = UnaryResult<formula, T>;
  const auto k = numbers_in<T>(numbers);
  const auto f = [&k](T v) __attribute__((always_inline)) {
    return static_cast<Y>(formula(M{}, v, k));
  };
  const T* x = static_cast<const T*>(row.a);
  Y* y = static_cast<Y*>(row.y);
  if (row.step_a == 0) {
    std::fill_n(y, row.n, f(*x));
  } else {
    unary_row(x, y, row.n, f);
  }
}

template <auto formula, typename T, typename M = FloatMath>
[[gnu::always_inline]] inline void binary_loop(const PointwiseRow& row, const Numbers& numbers) {
  using Y = BinaryResult<formula, T>;
  const auto k = numbers_in<T>(numbers);
  const auto f = [&k](T v, T w) __attribute__((always_inline)) {
    return static_cast<Y>(formula(M{}, v, w, k));
  };
  const T *a = static_cast<const T*>(row.a), *b = static_cast<const T*>(row.b);
  Y* y = static_cast<Y*>(row.y);
  if constexpr (std::is_same_v<T, float>) {
    binary_row(BinaryRow<T, Y>{a, row.step_a, b, row.step_b, y, row.n}, f);
  } else if (row.step_a == 1 && row.step_b == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < row.n; ++i) y[i] = f(a[i], b[i]);
  } else {
    for (int64_t i = 0; i < row.n; ++i) y[i] = f(a[i * row.step_a], b[i * row.step_b]);
  }
}

// Inlines the whole loop, so that each version has it in its own instruction set.
template <auto formula, typename A>
[[gnu::always_inline]] inline void float_unary_by(const PointwiseRow& row, const Numbers& numbers) {
  unary_loop<formula, float, FloatMathBy<A>>(row, numbers);
}
template <auto formula, typename A>
[[gnu::always_inline]] inline void float_binary_by(const PointwiseRow& row,
                                                   const Numbers& numbers) {
  binary_loop<formula, float, FloatMathBy<A>>(row, numbers);
}
template <auto formula>
RowLoop float_unary() {
  return fastest_version<float_unary_by<formula, SeparateMultiplyAdd>,
                         float_unary_by<formula, FusedMultiplyAdd>>();
}
template <auto formula>
RowLoop float_binary() {
  return fastest_version<float_binary_by<formula, SeparateMultiplyAdd>,
                         float_binary_by<formula, FusedMultiplyAdd>>();
}
template <auto formula, typename T>
void plain_unary(const PointwiseRow& row, const Numbers& numbers) {
  unary_loop<formula, T>(row, numbers);
}
template <auto formula, typename T>
void plain_binary(const PointwiseRow& row, const Numbers& numbers) {
  binary_loop<formula, T>(row, numbers);
}

// Calls f(T{}) for every type in the set.
template <TypeSet types, typename F>
void for_types(const F& f) {
  const auto one = [&f]<typename T>(T zero) {
    if constexpr (in_set(types, dtype_of<T>())) f(zero);
  };
  one(float{}), one(double{}), one(int8_t{}), one(int16_t{}), one(int32_t{}), one(int64_t{});
  one(uint8_t{}), one(uint16_t{}), one(uint32_t{}), one(uint64_t{}), one(bool{});
}

// How a formula's loops compile.
enum class Loops {
  kHot,       // float32 for each instruction set
  kRare,      // every type once: formulas that call the C library or that nobody trains with
  kSignless,  // as kHot; signed integers share the unsigned loops, which give the same bits
};

template <auto formula, TypeSet types = kFloatTypes, Loops kind = Loops::kHot>
PointwiseLoops unary_loops() {
  PointwiseLoops made;
  for_types<types>([&made]<typename T>(T) {
    made.to_bool = std::is_same_v<UnaryResult<formula, T>, bool>;
    if constexpr (std::is_same_v<T, float> && kind != Loops::kRare) {
      made[DType::kFloat32] = float_unary<formula>();
    } else {
      made[dtype_of<T>()] = plain_unary<formula, T>;
    }
  });
  return made;
}

template <typename T, Loops kind>
struct LoopType {
  using Type = T;
};
template <std::signed_integral T>
struct LoopType<T, Loops::kSignless> {
  using Type = std::make_unsigned_t<T>;
};

template <auto formula, TypeSet types = kFloatTypes, Loops kind = Loops::kHot>
PointwiseLoops binary_loops() {
  PointwiseLoops made{.operands = 2};
  for_types<types>([&made]<typename T>(T) {
    made.to_bool = std::is_same_v<BinaryResult<formula, T>, bool>;
    if constexpr (std::is_same_v<T, float> && kind != Loops::kRare) {
      made[DType::kFloat32] = float_binary<formula>();
    } else {
      made[dtype_of<T>()] = plain_binary<formula, typename LoopType<T, kind>::Type>;
    }
  });
  return made;
}

// --- kernels ---

// Accepts if input 0 has a loop and the operands fit: binary inputs share a dtype, a unary operand
// has the result's layout.
Acceptance accepts_pointwise(const PointwiseLoops& loops, const Problem& p);
std::unique_ptr<Kernel> create_pointwise(const PointwiseLoops& loops, const Numbers& numbers,
                                         const Problem& p);

// How 16-bit floats compute in float32: block by block in the first-level cache, or whole tensors
// in the workspace.
enum class HalfFloats { kBlocks, kWhole };

// Implementations for operator `op`, with numbers_of(op, attributes).
std::vector<Implementation> pointwise_kernels(const char* op, const PointwiseLoops& loops,
                                              HalfFloats half = HalfFloats::kBlocks);

// Returns the float32 and float64 loops for y = op(a) or y = op(a, b). Operators with such a
// formula take their loops here, so a chain gives its members' bits.
PointwiseLoops chain_loops(ChainOp op);  // REQUIRES: neither kNumber nor kRound

}  // namespace ofsdp::kernels
