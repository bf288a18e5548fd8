// Mathematical functions of one float input; the table lists derivatives, which are written in
// other operators. https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Sin, Cos, Tan     cos x, -sin x, 1 + y^2         Sinh, Cosh     cosh x, sinh x
//   Asin, Acos        +-1 / sqrt((1 - x) (1 + x))    Asinh          1 / sqrt(x^2 + 1)
//   Atan              1 / (1 + x^2)                  Acosh          1 / sqrt((x - 1) (x + 1))
//   Atanh             1 / ((1 - x) (1 + x))          Exp, Log       y, 1 / x
//   Sqrt              1 / (2 y)                      Reciprocal     -y^2
//   Floor, Ceil, Round (ties to even), Sign          0
#include <cmath>

#include "kernels/core/element_types.h"
#include "kernels/cpu/real_math.h"
#include "kernels/formulas/activation.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace functions {

// --- Sin, Cos and Tan: vector forms are accurate up to kMaxTurned, the C library beyond ---

[[gnu::always_inline]] inline bool fits(float x) { return !(__builtin_fabsf(x) > kMaxTurned); }

OFSDP_MULTIARCH bool all_fit(const float* x, int64_t n) {
  int misfits = 0;
  for (int64_t i = 0; i < n; ++i) misfits |= fits(x[i]) ? 0 : 1;
  return misfits == 0;
}

template <auto formula, float (*library)(float)>
void turned(const PointwiseRow& row, const Numbers& numbers) {
  const auto* x = static_cast<const float*>(row.a);
  auto* y = static_cast<float*>(row.y);
  if (all_fit(x, row.step_a == 0 ? 1 : row.n)) return float_unary<formula>()(row, numbers);
  for (int64_t i = 0; i < row.n; ++i) {
    const float v = x[i * row.step_a];
    y[i] = fits(v) ? formula(FloatMath{}, v, NumbersOf<float>{}) : library(v);
  }
}

template <auto formula, float (*library)(float)>
PointwiseLoops turned_loops() {
  PointwiseLoops made = unary_loops<formula>();
  made[DType::kFloat32] = turned<formula, library>;
  return made;
}

// --- parts of gradients ---

// dy / sqrt(square)
Ref over_root(GradBuilder& b, Ref square) {
  return b.div(b.grad_output(0), b.emit1("Sqrt", {square}));
}

// (1 - x) (1 + x)
Ref one_minus_square(GradBuilder& b) {
  const Ref x = b.input(0), one = b.like(x, 1);
  const Ref under = b.sub(one, x), over = b.add(one, x);
  return b.mul(under, over);
}

// x^2 + 1
Ref square_plus_one(GradBuilder& b) {
  const Ref x = b.input(0), one = b.like(x, 1);
  return b.add(b.mul(x, x), one);
}

template <typename T>
OFSDP_HD T abs_of(T x) {
  if constexpr (std::is_floating_point_v<T>) return FloatMath::fabs(x);
  if constexpr (std::is_unsigned_v<T>) return x;
  return x < T{0} ? wrapping(T{0}, x, [](auto p, auto q) { return p - q; }) : x;
}

std::vector<UnaryOp> trigonometric() {
  return {
      unary_op("Sin", 22, of_x<[](double x) { return std::sin(x); }>,
               turned_loops<OFSDP_X(M::sin(x)), std::sin>(),
               {.grad =
                    [](GradBuilder& b) {
                      b.set_grad(0, b.mul(b.grad_output(0), b.emit1("Cos", {b.input(0)})));
                    }}),
      unary_op("Cos", 22, of_x<[](double x) { return std::cos(x); }>,
               turned_loops<OFSDP_X(M::cos(x)), std::cos>(),
               {.grad =
                    [](GradBuilder& b) {
                      b.set_grad(0, b.mul(b.grad_output(0), b.neg(b.emit1("Sin", {b.input(0)}))));
                    }}),
      unary_op("Tan", 22, of_x<[](double x) { return std::tan(x); }>,
               turned_loops<OFSDP_X(M::tan(x)), std::tan>(),
               {.grad =
                    [](GradBuilder& b) {
                      const Ref dy = b.grad_output(0), y = b.output(0);
                      b.set_grad(0, b.add(dy, b.mul(dy, b.mul(y, y))));
                    }}),
      unary_op("Asin", 22, of_x<[](double x) { return std::asin(x); }>,
               unary_loops<OFSDP_X(M::asin(x)), kFloatTypes, Loops::kRare>(),
               {.grad = [](GradBuilder& b) { b.set_grad(0, over_root(b, one_minus_square(b))); }}),
      unary_op(
          "Acos", 22, of_x<[](double x) { return std::acos(x); }>,
          unary_loops<OFSDP_X(M::acos(x)), kFloatTypes, Loops::kRare>(),
          {.grad =
               [](GradBuilder& b) { b.set_grad(0, b.neg(over_root(b, one_minus_square(b)))); }}),
      unary_op(
          "Atan", 22, of_x<[](double x) { return std::atan(x); }>,
          unary_loops<OFSDP_X(M::atan(x)), kFloatTypes, Loops::kRare>(),
          {.grad =
               [](GradBuilder& b) { b.set_grad(0, b.div(b.grad_output(0), square_plus_one(b))); }}),
  };
}

std::vector<UnaryOp> hyperbolic() {
  return {
      unary_op("Sinh", 22, of_x<[](double x) { return std::sinh(x); }>,
               unary_loops<OFSDP_X(M::sinh(x)), kFloatTypes, Loops::kRare>(),
               {.grad =
                    [](GradBuilder& b) {
                      b.set_grad(0, b.mul(b.grad_output(0), b.emit1("Cosh", {b.input(0)})));
                    }}),
      unary_op("Cosh", 22, of_x<[](double x) { return std::cosh(x); }>,
               unary_loops<OFSDP_X(M::cosh(x)), kFloatTypes, Loops::kRare>(),
               {.grad =
                    [](GradBuilder& b) {
                      b.set_grad(0, b.mul(b.grad_output(0), b.emit1("Sinh", {b.input(0)})));
                    }}),
      unary_op("Asinh", 22, of_x<[](double x) { return std::asinh(x); }>,
               unary_loops<OFSDP_X(M::asinh(x)), kFloatTypes, Loops::kRare>(),
               {.grad = [](GradBuilder& b) { b.set_grad(0, over_root(b, square_plus_one(b))); }}),
      unary_op("Acosh", 22, of_x<[](double x) { return std::acosh(x); }>,
               unary_loops<OFSDP_X(M::acosh(x)), kFloatTypes, Loops::kRare>(),
               {.grad =
                    [](GradBuilder& b) {
                      const Ref x = b.input(0), one = b.like(x, 1);
                      const Ref under = b.sub(x, one), over = b.add(x, one);
                      b.set_grad(0, over_root(b, b.mul(under, over)));
                    }}),
      unary_op("Atanh", 22, of_x<[](double x) { return std::atanh(x); }>,
               unary_loops<OFSDP_X(M::atanh(x)), kFloatTypes, Loops::kRare>(),
               {.grad =
                    [](GradBuilder& b) {
                      b.set_grad(0, b.div(b.grad_output(0), one_minus_square(b)));
                    }}),
  };
}

std::vector<UnaryOp> powers() {
  return {
      unary_op(
          "Exp", 13, of_x<[](double x) { return std::exp(x); }>, chain_loops(ChainOp::kExp),
          {.grad = [](GradBuilder& b) { b.set_grad(0, b.mul(b.grad_output(0), b.output(0))); }}),
      unary_op(
          "Log", 13, of_x<[](double x) { return std::log(x); }>, chain_loops(ChainOp::kLog),
          {.grad = [](GradBuilder& b) { b.set_grad(0, b.div(b.grad_output(0), b.input(0))); }}),
      unary_op("Sqrt", 13, of_x<[](double x) { return std::sqrt(x); }>, chain_loops(ChainOp::kSqrt),
               {.grad =
                    [](GradBuilder& b) {
                      const Ref scaled = b.mul(b.grad_output(0), 0.5);
                      b.set_grad(0, b.div(scaled, b.output(0)));
                    }}),
      unary_op("Reciprocal", 13, of_x<[](double x) { return 1 / x; }>,
               chain_loops(ChainOp::kReciprocal),
               {.grad =
                    [](GradBuilder& b) {
                      const Ref y = b.output(0);
                      b.set_grad(0, b.neg(b.mul(b.grad_output(0), b.mul(y, y))));
                    }}),
  };
}

double sign_in_double(double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x; }

std::vector<UnaryOp> steps() {
  return {
      unary_op("Floor", 13, of_x<[](double x) { return std::floor(x); }>,
               unary_loops<OFSDP_X(M::floor(x))>(), {.grad = grad_is_zero}),
      unary_op("Ceil", 13, of_x<[](double x) { return std::ceil(x); }>,
               unary_loops<OFSDP_X(M::ceil(x))>(), {.grad = grad_is_zero}),
      unary_op("Round", 22, of_x<[](double x) { return std::nearbyint(x); }>,
               unary_loops<OFSDP_X(M::rint(x))>(), {.grad = grad_is_zero}),
      unary_op("Sign", 13, of_x<sign_in_double>, unary_loops<OFSDP_X(sign_of(x)), kNumberTypes>(),
               {.grad = grad_is_zero}),
  };
}

// These take every numeric type; the smallest integer wraps. Abs has gradient 0 at 0.
std::vector<UnaryOp> signs() {
  return {
      unary_op("Neg", 13, of_x<[](double x) { return -x; }>,
               joined_loops(chain_loops(ChainOp::kNeg),
                            unary_loops<OFSDP_X(wrapping(decltype(x){0}, x,
                                                         [](auto p, auto q) { return p - q; })),
                                        kSignedIntegers>()),
               {.grad = [](GradBuilder& b) { b.set_grad(0, b.neg(b.grad_output(0))); }}),
      unary_op(
          "Abs", 13, of_x<[](double x) { return std::abs(x); }>,
          unary_loops<OFSDP_X(abs_of(x)), kNumberTypes>(),
          {.slope = {{.reference = of_ab<[](double d, double x) { return d * sign_in_double(x); }>,
                      .loops = binary_loops<OFSDP_DX(abs_grad(d, x))>(),
                      .body =
                          [](BodyBuilder& b) {
                            b.set_output(0, b.mul(b.input(0), b.emit1("Sign", {b.input(1)})));
                          }}}}),
  };
}

}  // namespace functions

void add_functions(Registry& registry) {
  using namespace functions;
  for (const auto& family : {trigonometric(), hyperbolic(), powers(), steps(), signs()}) {
    for (const UnaryOp& op : family) add_unary(registry, op);
  }
}

}  // namespace ofsdp::kernels::ops
