// Operators whose result is bool: comparisons, logic, and tests of floats. No gradients.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// IsInf has attributes detect_positive (1) and detect_negative (1): which infinities count.
//
// Operators on the bits of integers, broadcast. No gradients.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// BitShift, attribute direction ("LEFT" or "RIGHT"): a shifted by b bits. Bits shifted out are
// lost; to the right, signed integers fill with their sign. A negative b, or one of all bits and
// more, leaves only the fill.
#include <cmath>
#include <limits>

#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace logic {

double of(bool value) { return value ? 1.0 : 0.0; }

template <typename T>
OFSDP_HD bool is_counted_infinity(T x, bool positive, bool negative) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const bool above = x == kInfinity, below = x == -kInfinity;
  return (positive & above) | (negative & below);
}

std::vector<BinaryOp> comparisons() {
  return {
      {"Equal", 19, of_ab<[](double a, double b) { return of(a == b); }>,
       binary_loops<OFSDP_AB(a == b), kNumberTypes | kBoolType, Loops::kSignless>()},
      {"Less", 13, of_ab<[](double a, double b) { return of(a < b); }>,
       binary_loops<OFSDP_AB(a < b), kNumberTypes>()},
      {"LessOrEqual", 16, of_ab<[](double a, double b) { return of(a <= b); }>,
       binary_loops<OFSDP_AB(a <= b), kNumberTypes>()},
      {"Greater", 13, of_ab<[](double a, double b) { return of(a > b); }>,
       binary_loops<OFSDP_AB(a > b), kNumberTypes>()},
      {"GreaterOrEqual", 16, of_ab<[](double a, double b) { return of(a >= b); }>,
       binary_loops<OFSDP_AB(a >= b), kNumberTypes>()},
      {"And", 7, of_ab<[](double a, double b) { return of(a != 0 && b != 0); }>,
       binary_loops<OFSDP_AB(a && b), kBoolType>()},
      {"Or", 7, of_ab<[](double a, double b) { return of(a != 0 || b != 0); }>,
       binary_loops<OFSDP_AB(a || b), kBoolType>()},
      {"Xor", 7, of_ab<[](double a, double b) { return of((a != 0) != (b != 0)); }>,
       binary_loops<OFSDP_AB(a != b), kBoolType>()},
  };
}

std::vector<UnaryOp> float_tests() {
  return {
      unary_op("IsNaN", 9, of_x<[](double x) { return of(std::isnan(x)); }>,
               unary_loops<OFSDP_X(x != x)>()),
      unary_op("IsInf", 10, of_x<[](double x, const Attributes& a) {
                 const char* detect = (x > 0) ? "detect_positive" : "detect_negative";
                 return of(std::isinf(x) && a.i(detect, 1) != 0);
               }>,
               unary_loops<OFSDP_X(is_counted_infinity(x, k.a != 0, k.b != 0))>()),
  };
}

Result<std::vector<TensorDesc>> infer_not(const InferContext& c) {
  if (c.inputs[0].dtype != DType::kBool) {
    return input_error("expected bool, found {}", c.inputs[0].text());
  }
  return std::vector{c.inputs[0]};
}

OpDef logical_not() {
  return pointwise(make_op("Not", {infer_not, nullptr, of_x<[](double x) { return of(x == 0); }>},
                           pointwise_kernels("Not", unary_loops<OFSDP_X(!x), kBoolType>())));
}

int64_t whole(double x) { return static_cast<int64_t>(x); }

std::vector<BinaryOp> bitwise() {
  return {
      {"BitwiseAnd", 18,
       of_ab<[](double a, double b) { return static_cast<double>(whole(a) & whole(b)); }>,
       binary_loops<OFSDP_AB(a & b), kIntegerTypes, Loops::kSignless>()},
      {"BitwiseOr", 18,
       of_ab<[](double a, double b) { return static_cast<double>(whole(a) | whole(b)); }>,
       binary_loops<OFSDP_AB(a | b), kIntegerTypes, Loops::kSignless>()},
      {"BitwiseXor", 18,
       of_ab<[](double a, double b) { return static_cast<double>(whole(a) ^ whole(b)); }>,
       binary_loops<OFSDP_AB(a ^ b), kIntegerTypes, Loops::kSignless>()},
  };
}

std::vector<RefTensor> not_reference(const ReferenceContext& c) {
  RefTensor y = unary_reference(c, [](double x) { return -1 - x; })[0];
  const auto bits = static_cast<int>(8 * dtype_size(y.desc.dtype));
  for (double& v : y.values) {
    if (y.desc.dtype >= DType::kUInt8) v += std::ldexp(1.0, bits);
  }
  return {y};
}

// --- BitShift ---

std::vector<RefTensor> shift_reference(const ReferenceContext& c) {
  const bool left = c.attributes.s("direction", "") == "LEFT";
  const TensorDesc& desc = c.output_descs[0];
  const double range = std::ldexp(1.0, static_cast<int>(8 * dtype_size(desc.dtype)));
  const bool is_signed = desc.dtype <= DType::kInt64;
  return binary_reference(c, [=](double a, double b) {
    const double by = b < 0 ? 64 : b;
    if (!left) return std::floor(std::ldexp(a, -static_cast<int>(by)));
    if (std::ldexp(1.0, static_cast<int>(by)) >= range) return 0.0;
    const double moved = std::ldexp(a, static_cast<int>(by));
    if (std::abs(moved) < range / 2) return moved;
    const double rest = std::fmod(moved, range);
    const double positive = rest < 0 ? rest + range : rest;
    return is_signed && positive >= range / 2 ? positive - range : positive;
  });
}

template <typename T>
OFSDP_HD T shift_of(T a, T b, bool left) {
  constexpr T kBits = 8 * sizeof(T);
  const bool all = (std::is_signed_v<T> && b < T{0}) || b >= kBits;
  if (left) return all ? T{0} : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << b);
  if (!std::is_signed_v<T> && all) return T{0};
  return static_cast<T>(a >> (all ? static_cast<T>(kBits - 1) : b));
}

Result<std::vector<TensorDesc>> infer_shift(const InferContext& c) {
  const std::string direction = c.attributes.s("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") {
    return input_error("attribute 'direction': expected LEFT or RIGHT, found '{}'", direction);
  }
  return infer_binary(c);
}

std::vector<OpDef> others() {
  return {
      pointwise(make_op(
          "BitwiseNot", {nullptr, nullptr, not_reference},
          pointwise_kernels("BitwiseNot",
                            unary_loops<OFSDP_X(static_cast<decltype(x)>(~x)), kIntegerTypes>()),
          {.first_opset = 18})),
      pointwise(make_op(
          "BitShift", {infer_shift, nullptr, shift_reference},
          pointwise_kernels("BitShift",
                            binary_loops<OFSDP_AB(shift_of(a, b, k.a != 0)), kIntegerTypes>()),
          {.min_inputs = 2, .first_opset = 11})),
  };
}

}  // namespace logic

void add_logic(Registry& registry) {
  using namespace logic;
  for (const BinaryOp& op : comparisons()) add_binary(registry, op);
  for (const UnaryOp& op : float_tests()) add_unary(registry, op);
  registry.add(logical_not());
  for (const BinaryOp& op : bitwise()) add_binary(registry, op);
  for (OpDef& op : others()) registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
