// Arithmetic of two inputs that broadcast, of all numbers. Integers wrap; Div cuts towards 0. An
// integer divisor of 0 is an error of the data. https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Add, Sub   da = dy, db = +-dy                Mul   da = dy b, db = dy a
//   Div        da = dy / b, db = -dy y / b
//   Mod        y = a - q b with q = floor(a / b), or trunc(a / b) with fmod = 1, so y has the sign
//              of b, or of a; da = dy, db = -dy q, where q is (a - y) / b, rounded
//   PRelu      y = x where x >= 0, else slope x; slope broadcasts to x. dx = dy where x > 0, else
//              dy slope; dslope = dy x where x < 0
//
// Gradients are summed over the axes along which an input was broadcast.
#include <cmath>

#include "kernels/core/element_types.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/cpu/real_math.h"
#include "kernels/formulas/activation.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace arithmetic {

constexpr auto kPlus = [](auto p, auto q) { return p + q; };
constexpr auto kMinus = [](auto p, auto q) { return p - q; };
constexpr auto kTimes = [](auto p, auto q) { return p * q; };

// --- gradients ---

void add_grad(GradBuilder& b) {
  for (size_t i = 0; i < 2; ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(b.grad_output(0), b.input(i)));
  }
}

void sub_grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (b.needs_grad(0)) b.set_grad(0, b.sum_to(dy, b.input(0)));
  // Summed before it is negated: the sum may be much smaller.
  if (b.needs_grad(1)) b.set_grad(1, b.neg(b.sum_to(dy, b.input(1))));
}

void mul_grad(GradBuilder& b) {
  for (size_t i = 0; i < 2; ++i) {
    if (!b.needs_grad(i)) continue;
    b.set_grad(i, b.sum_to(b.mul(b.grad_output(0), b.input(1 - i)), b.input(i)));
  }
}

void div_grad(GradBuilder& b) {
  const Ref scaled = b.div(b.grad_output(0), b.input(1));
  if (b.needs_grad(0)) b.set_grad(0, b.sum_to(scaled, b.input(0)));
  if (!b.needs_grad(1)) return;
  b.set_grad(1, b.neg(b.sum_to(b.mul(scaled, b.output(0)), b.input(1))));
}

void mod_grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (b.needs_grad(0)) b.set_grad(0, b.sum_to(dy, b.input(0)));
  if (!b.needs_grad(1)) return;
  const Ref whole = b.sub(b.input(0), b.output(0));
  const Ref quotient = b.emit1("Round", {b.div(whole, b.input(1))});
  b.set_grad(1, b.neg(b.sum_to(b.mul(dy, quotient), b.input(1))));
}

void prelu_grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0), zero = b.like(dy, 0);
  const Ref above = b.emit1("Greater", {b.input(0), zero});
  if (b.needs_grad(0)) b.set_grad(0, b.where(above, dy, b.mul(dy, b.input(1))));
  if (!b.needs_grad(1)) return;
  const Ref product = b.mul(dy, b.input(0));
  b.set_grad(1, b.sum_to(b.where(above, zero, product), b.input(1)));
}

// --- Div and Mod: an integer divisor of 0 is found before the processor traps, and the smallest
// integer divided by -1 wraps ---

template <typename T>
constexpr T wrapping_quotient(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == T{-1}) return wrapping(T{0}, a, [](auto p, auto q) { return p - q; });
  }
  return static_cast<T>(a / b);
}

// The remainder of wrapping_quotient: it has the sign of a.
template <typename T>
constexpr T wrapping_rest(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == T{-1}) return 0;
  }
  return static_cast<T>(a % b);
}

template <typename T>
Status refuse_zero_divisor(const T* divisor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (divisor[i] == T{0}) return input_error("element {} of the integer divisor is 0", i);
  }
  return ok_status();
}

// `kernel` itself, or, where input 1 has integers, one that looks for zeros first.
std::unique_ptr<Kernel> with_divisor_check(const Problem& p, std::unique_ptr<Kernel> kernel) {
  if (!is_integer(p.in(1).dtype)) return kernel;
  return make_kernel(
      [inner = std::move(kernel), dtype = p.in(1).dtype, n = p.in(1).numel()](const KernelArgs& a) {
        OFSDP_RETURN_IF_ERROR(with_bits(dtype_size(dtype), [&](auto zero) {
          return refuse_zero_divisor(a.in<decltype(zero)>(1), n);
        }));
        return inner->run(a);
      });
}

OpDef with_checked_divisor(OpDef op, const PointwiseLoops& loops) {
  Implementation checked = pointwise_kernels(op.name == "Mod" ? "Mod" : "Div", loops)[0];
  checked.create = [create = checked.create](const Problem& p) {
    return with_divisor_check(p, create(p));
  };
  op.cpu = {checked, in_float32(checked)};
  return op;
}

template <typename T>
OFSDP_HD T mod_any(T a, T b, bool truncated) {
  if constexpr (std::is_floating_point_v<T>) {
    return mod_of<FloatMath>(a, b, truncated);
  } else {
    const T rest = wrapping_rest(a, b);
    const bool same = truncated || rest == T{0} || (rest < T{0}) == (b < T{0});
    return same ? rest : static_cast<T>(rest + b);
  }
}

OpDef div() {
  const PointwiseLoops loops = joined_loops(
      chain_loops(ChainOp::kDiv), binary_loops<OFSDP_AB(wrapping_quotient(a, b)), kIntegerTypes>());
  return with_checked_divisor(binary({.name = "Div",
                                      .first_opset = 14,
                                      .reference =
                                          [](const ReferenceContext& c) {
                                            const bool whole = is_integer(c.inputs[0].desc.dtype);
                                            return binary_reference(c, [whole](double a, double b) {
                                              return whole ? std::trunc(a / b) : a / b;
                                            });
                                          },
                                      .loops = loops,
                                      .grad = div_grad}),
                              loops);
}

OpDef mod() {
  const PointwiseLoops loops =
      binary_loops<OFSDP_AB(mod_any(a, b, k.a != 0)), kNumberTypes, Loops::kRare>();
  OpDef op = with_checked_divisor(
      binary({.name = "Mod",
              .first_opset = 13,
              .reference = of_ab<[](double a, double b, const Attributes& attributes) {
                const double rest = std::fmod(a, b);
                const bool truncated = attributes.i("fmod", 0) != 0;
                return truncated || rest == 0 || (rest < 0) == (b < 0) ? rest : rest + b;
              }>,
              .loops = loops,
              .grad = mod_grad}),
      loops);
  return op;
}

// --- PRelu ---

Result<std::vector<TensorDesc>> infer_prelu(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  if (desc.shape != c.inputs[0].shape) {
    return input_error("expected a slope that broadcasts to {}, found {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  return std::vector{std::move(desc)};
}

OpDef prelu() {
  constexpr TypeSet kTypes = kFloatTypes | type_bit(DType::kInt32) | type_bit(DType::kInt64) |
                             type_bit(DType::kUInt32) | type_bit(DType::kUInt64);
  OpDef op = binary(
      {.name = "PRelu",
       .first_opset = 9,
       .reference = of_ab<[](double x, double s) { return x < 0 ? s * x : x; }>,
       .loops = binary_loops<OFSDP_AB(a < decltype(a){0} ? wrapping(a, b, kTimes) : a), kTypes>(),
       .grad = prelu_grad});
  op.infer = infer_prelu;
  return op;
}

std::vector<BinaryOp> wrapping_operators() {
  return {
      binary_op(
          "Add", 14, of_ab<[](double a, double b) { return a + b; }>,
          joined_loops(
              chain_loops(ChainOp::kAdd),
              binary_loops<OFSDP_AB(wrapping(a, b, kPlus)), kIntegerTypes, Loops::kSignless>()),
          {.grad = add_grad}),
      binary_op(
          "Sub", 14, of_ab<[](double a, double b) { return a - b; }>,
          joined_loops(
              chain_loops(ChainOp::kSub),
              binary_loops<OFSDP_AB(wrapping(a, b, kMinus)), kIntegerTypes, Loops::kSignless>()),
          {.grad = sub_grad}),
      binary_op(
          "Mul", 14, of_ab<[](double a, double b) { return a * b; }>,
          joined_loops(
              chain_loops(ChainOp::kMul),
              binary_loops<OFSDP_AB(wrapping(a, b, kTimes)), kIntegerTypes, Loops::kSignless>()),
          {.grad = mul_grad}),
  };
}

}  // namespace arithmetic

void add_arithmetic(Registry& registry) {
  using namespace arithmetic;
  for (const BinaryOp& op : wrapping_operators()) add_binary(registry, op);
  registry.add(div());
  registry.add(mod());
  registry.add(prelu());
}

}  // namespace ofsdp::kernels::ops
