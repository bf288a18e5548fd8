// Operators with a bool result: comparisons, logic, and float tests; they have no gradients. Then
// bitwise operators, Where and Clip.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// IsInf has attributes detect_positive (1) and detect_negative (1): which infinities count.
//
// Bitwise operators take integers, broadcast, without gradients. BitShift, attribute direction
// ("LEFT" or "RIGHT"), shifts a by b bits. Bits shifted out are lost; to the right, signed integers
// fill with their sign. If b is negative or at least the width, only the fill remains.

#include <cmath>
#include <limits>

#include "kernels/core/element_types.h"
#include "kernels/cpu/loops.h"
#include "kernels/formulas/activation.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"
#include "kernels/ops/support.h"

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

// Clip(x, min, max): y = min(max(x, min), max), for all numeric types; an absent bound does not
// bind. NaN stays NaN. dx = dy if min <= x <= max and min < max, else 0
// (ofsdp.ClipGrad(dy, x, min, max)).
// https://onnx.ai/onnx/operators/onnx__Clip.html
//
// `Where(condition, x, y)`: x if the condition is true, else y, broadcast; x and y may have any
// dtype. With the output's gradient d: dx = d if the condition is true, else 0; dy the opposite;
// each is summed over the broadcast axes.
// https://onnx.ai/onnx/operators/onnx__Where.html

namespace clip_where {

Result<std::vector<TensorDesc>> infer_bounded(const InferContext& c, size_t first) {
  for (size_t i : {first, first + 1}) {
    if (!c.has(i)) continue;
    if (c.inputs[i].numel() != 1 || c.inputs[i].dtype != c.inputs[0].dtype) {
      return input_error("expected one {} as input '{}', found {}", dtype_name(c.inputs[0].dtype),
                         i == first ? "min" : "max", c.inputs[i].text());
    }
  }
  return std::vector{c.inputs[0]};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) { return infer_bounded(c, 1); }
Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) { return infer_bounded(c, 2); }

void grad(GradBuilder& b) {
  std::vector<Ref> inputs = {b.grad_output(0)};
  for (size_t i = 0; i < b.num_inputs(); ++i) inputs.push_back(b.input(i));
  b.set_grad(0, b.emit1("ofsdp.ClipGrad", inputs));
}

double reference_bound(const ReferenceContext& c, size_t i, double none) {
  return c.inputs.size() > i && c.inputs[i].desc.present() ? c.inputs[i].values[0] : none;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const double low = reference_bound(c, 1, -std::numeric_limits<double>::infinity());
  const double high = reference_bound(c, 2, std::numeric_limits<double>::infinity());
  return unary_reference(c, [=](double v) {
    const double raised = v < low ? low : v;
    return raised > high ? high : raised;
  });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const double low = reference_bound(c, 2, -std::numeric_limits<double>::infinity());
  const double high = reference_bound(c, 3, std::numeric_limits<double>::infinity());
  return binary_reference(
      c, [=](double d, double v) { return low < high && v >= low && v <= high ? d : 0; });
}

// --- kernels: for each type a loop over x, or over dy and x, with this run's bounds ---

struct ClipRow {
  const void *d, *x;
  void* y;
  int64_t n;
  const void *low, *high;  // null if absent
};
using ClipLoop = void (*)(const ClipRow& row);

template <bool is_grad, typename T>
[[gnu::always_inline]] inline void clip_row(const ClipRow& row) {
  constexpr T kMax = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                          : std::numeric_limits<T>::max();
  constexpr T kMin = std::numeric_limits<T>::has_infinity ? -kMax : std::numeric_limits<T>::min();
  const T low = row.low != nullptr ? *static_cast<const T*>(row.low) : kMin;
  const T high = row.high != nullptr ? *static_cast<const T*>(row.high) : kMax;
  const auto *d = static_cast<const T*>(row.d), *x = static_cast<const T*>(row.x);
  auto* y = static_cast<T*>(row.y);
#pragma GCC ivdep
  for (int64_t i = 0; i < row.n; ++i) {
    y[i] = is_grad ? clip_grad(d[i], x[i], low, high) : clip_of(x[i], low, high);
  }
}

template <bool is_grad>
OFSDP_MULTIARCH void clip_floats(const ClipRow& row) {
  clip_row<is_grad, float>(row);
}
template <bool is_grad, typename T>
void clip_numbers(const ClipRow& row) {
  clip_row<is_grad, T>(row);
}

// x is Clip's input 0, and ClipGrad's input 1, after dy.
template <bool is_grad>
Implementation clip_loops() {
  constexpr TypeSet kTypes = is_grad ? kFloatTypes : kNumberTypes;
  std::array<ClipLoop, kDTypes> loops = {};
  for_types<kTypes>([&]<typename T>(T) {
    loops[static_cast<size_t>(dtype_of<T>())] =
        std::is_same_v<T, float> ? clip_floats<is_grad> : clip_numbers<is_grad, T>;
  });
  const auto accepts = [](const Problem& p) {
    if (!in_set(kTypes, p.in(0).dtype)) return Acceptance::refuse("no loop for this dtype");
    return accept_if(p.in(0).layout == p.out(0).layout, "input and output of two layouts");
  };
  const auto create = [loops](const Problem& p) {
    const auto bytes = static_cast<int64_t>(dtype_size(p.in(0).dtype));
    return make_kernel([loop = loops[static_cast<size_t>(p.in(0).dtype)], n = p.out(0).numel(),
                        bytes](const KernelArgs& a) {
      constexpr size_t kX = is_grad ? 1 : 0;
      const auto bound = [&](size_t i) -> const void* {
        return a.inputs.size() > i ? a.inputs[i].data : nullptr;
      };
      parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
        loop({a.in<std::byte>(0) + begin * bytes, a.in<std::byte>(kX) + begin * bytes,
              a.out<std::byte>(0) + begin * bytes, end - begin, bound(kX + 1), bound(kX + 2)});
      });
    });
  };
  return {"loops", accepts, create};
}

void clip_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), x = b.input(1), zero = b.like(dy, 0);
  Ref made = dy;
  if (b.input(2)) made = b.where(b.emit1("GreaterOrEqual", {x, b.input(2)}), made, zero);
  if (b.input(3)) made = b.where(b.emit1("LessOrEqual", {x, b.input(3)}), made, zero);
  if (b.input(2) && b.input(3)) {
    made = b.where(b.emit1("Less", {b.input(2), b.input(3)}), made, zero);
  }
  b.set_output(0, made);
}

Result<std::vector<TensorDesc>> where_infer(const InferContext& c) {
  const auto& [condition, x, y] = std::tie(c.inputs[0], c.inputs[1], c.inputs[2]);
  if (condition.dtype != DType::kBool || x.dtype != y.dtype) {
    return input_error("expected a bool condition and two inputs of one type, found {}, {} and {}",
                       condition.text(), x.text(), y.text());
  }
  OFSDP_ASSIGN_OR_RETURN(const Shape both, broadcast(x.shape, y.shape));
  OFSDP_ASSIGN_OR_RETURN(Shape shape, broadcast(condition.shape, both));
  return std::vector{TensorDesc{x.dtype, std::move(shape)}};
}

void where_grad(GradBuilder& b) {
  const Ref d = b.grad_output(0);
  const Ref zero = b.like(d, 0);
  const Ref condition = b.input(0);
  if (b.needs_grad(1)) b.set_grad(1, b.sum_to(b.where(condition, d, zero), b.input(1)));
  if (b.needs_grad(2)) b.set_grad(2, b.sum_to(b.where(condition, zero, d), b.input(2)));
}

std::vector<RefTensor> where_reference(const ReferenceContext& c) {
  RefTensor out{c.output_descs[0], {}};
  for (int64_t i = 0; i < out.desc.numel(); ++i) {
    const auto index = unravel(out.desc.shape, i);
    auto at = [&](size_t k) {
      return c.inputs[k].values[ravel_broadcast(c.inputs[k].desc.shape, index)];
    };
    out.values.push_back(at(0) != 0 ? at(1) : at(2));
  }
  return {out};
}

// One loop for each step pattern that matters: gcc vectorises loops with known steps.
template <int kStepX, int kStepY, typename T>
OFSDP_MULTIARCH void choose(const uint8_t* c, const T* x, const T* y, T* out, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = c[i] != 0 ? x[i * kStepX] : y[i * kStepY];
}

template <typename T>
void where_row(const uint8_t* c, int64_t step_c, const T* x, int64_t step_x, const T* y,
               int64_t step_y, T* out, int64_t n) {
  if (step_c == 1 && step_x == 1 && step_y == 1) return choose<1, 1>(c, x, y, out, n);
  if (step_c == 1 && step_x == 1 && step_y == 0) return choose<1, 0>(c, x, y, out, n);
  if (step_c == 1 && step_x == 0 && step_y == 1) return choose<0, 1>(c, x, y, out, n);
  for (int64_t i = 0; i < n; ++i) out[i] = c[i * step_c] != 0 ? x[i * step_x] : y[i * step_y];
}

template <typename T>
std::unique_ptr<Kernel> create_as(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const StridedLoop loop(shape,
                         {broadcast_strides(p.in(0), shape), broadcast_strides(p.in(1), shape),
                          broadcast_strides(p.in(2), shape), strides_of(p.out(0))});
  return make_kernel([loop](const KernelArgs& a) {
    auto row = [&](const StridedLoop::Offsets& at, int64_t n) {
      where_row(a.in<uint8_t>(0) + at[0], loop.inner_stride(0), a.in<T>(1) + at[1],
                loop.inner_stride(1), a.in<T>(2) + at[2], loop.inner_stride(2), a.out<T>(0) + at[3],
                n);
    };
    for_loop_rows(loop, row);
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_bits(dtype_size(p.out(0).dtype),
                   [&p](auto bits) { return create_as<decltype(bits)>(p); });
}

}  // namespace clip_where

void add_clip_where(Registry& registry) {
  using namespace clip_where;
  registry.add(pointwise(make_op("Clip", {infer, grad, reference},
                                 {clip_loops<false>(), in_float32(clip_loops<false>())},
                                 {.first_opset = 11, .reads_number = true})));
  registry.add(pointwise_grad(make_op("ClipGrad", {infer_grad, nullptr, grad_reference},
                                      {clip_loops<true>(), in_float32(clip_loops<true>())},
                                      {.body = clip_grad_body})));
  registry.add(make_op("Where", {where_infer, where_grad, where_reference},
                       {{"loops", accepts_plain, create}},
                       {.min_inputs = 3,
                        .first_opset = 9,
                        .narrow_types = true,
                        .reads_number = true,
                        .inplace_inputs = {1, 2}}));
}

}  // namespace ofsdp::kernels::ops
