// Operators whose result is bool: comparisons, logic, and tests of floats. No gradients.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// IsInf has attributes detect_positive (1) and detect_negative (1): which infinities count.
#include <cmath>
#include <limits>

#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

double of(bool value) { return value ? 1.0 : 0.0; }

template <typename T>
OFSDP_HD bool is_counted_infinity(T x, bool positive, bool negative) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const bool above = x == kInfinity, below = x == -kInfinity;
  return (positive & above) | (negative & below);
}

std::vector<BinaryOp> comparisons() {
  return {
      {.name = "Equal",
       .first_opset = 19,
       .reference = of_ab<[](double a, double b) { return of(a == b); }>,
       .loops = binary_loops<OFSDP_AB(a == b), kNumberTypes | kBoolType, Loops::kSignless>()},
      {.name = "Less",
       .first_opset = 13,
       .reference = of_ab<[](double a, double b) { return of(a < b); }>,
       .loops = binary_loops<OFSDP_AB(a < b), kNumberTypes>()},
      {.name = "LessOrEqual",
       .first_opset = 16,
       .reference = of_ab<[](double a, double b) { return of(a <= b); }>,
       .loops = binary_loops<OFSDP_AB(a <= b), kNumberTypes>()},
      {.name = "Greater",
       .first_opset = 13,
       .reference = of_ab<[](double a, double b) { return of(a > b); }>,
       .loops = binary_loops<OFSDP_AB(a > b), kNumberTypes>()},
      {.name = "GreaterOrEqual",
       .first_opset = 16,
       .reference = of_ab<[](double a, double b) { return of(a >= b); }>,
       .loops = binary_loops<OFSDP_AB(a >= b), kNumberTypes>()},
      {.name = "And",
       .first_opset = 7,
       .reference = of_ab<[](double a, double b) { return of(a != 0 && b != 0); }>,
       .loops = binary_loops<OFSDP_AB(a && b), kBoolType>()},
      {.name = "Or",
       .first_opset = 7,
       .reference = of_ab<[](double a, double b) { return of(a != 0 || b != 0); }>,
       .loops = binary_loops<OFSDP_AB(a || b), kBoolType>()},
      {.name = "Xor",
       .first_opset = 7,
       .reference = of_ab<[](double a, double b) { return of((a != 0) != (b != 0)); }>,
       .loops = binary_loops<OFSDP_AB(a != b), kBoolType>()},
  };
}

std::vector<UnaryOp> float_tests() {
  return {
      {.name = "IsNaN",
       .first_opset = 9,
       .reference = of_x<[](double x) { return of(std::isnan(x)); }>,
       .loops = unary_loops<OFSDP_X(x != x)>()},
      {.name = "IsInf",
       .first_opset = 10,
       .reference = of_x<[](double x, const Attributes& a) {
         const char* detect = (x > 0) ? "detect_positive" : "detect_negative";
         return of(std::isinf(x) && a.i(detect, 1) != 0);
       }>,
       .loops = unary_loops<OFSDP_X(is_counted_infinity(x, k.a != 0, k.b != 0))>(),
       .samples = {.more = {extreme_sample({{"detect_positive", int64_t{0}}}),
                            extreme_sample({{"detect_negative", int64_t{0}}})}}},
  };
}

Result<std::vector<TensorDesc>> infer_not(const InferContext& c) {
  if (c.inputs[0].dtype != DType::kBool) {
    return input_error("expected bool, found {}", c.inputs[0].text());
  }
  return std::vector{c.inputs[0]};
}

OpDef logical_not() {
  return pointwise({.name = "Not",
                    .infer = infer_not,
                    .reference = of_x<[](double x) { return of(x == 0); }>,
                    .cpu = pointwise_kernels("Not", unary_loops<OFSDP_X(!x), kBoolType>()),
                    .samples = []() -> std::vector<SampleCase> {
                      return {{.name = "matrix", .inputs = {{DType::kBool, {3, 5}}}},
                              {.name = "empty", .inputs = {{DType::kBool, {0, 5}}}}};
                    }});
}

}  // namespace

void add_predicates(Registry& registry) {
  for (const BinaryOp& op : comparisons()) add_binary(registry, op);
  for (const UnaryOp& op : float_tests()) add_unary(registry, op);
  registry.add(logical_not());
}

}  // namespace ofsdp::kernels::ops
