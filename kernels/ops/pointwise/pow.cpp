// Pow(x, e): y = x^e, broadcast, in the type of x; e may have another. dx = dy e x^(e-1), 0 where e
// is 0; de = dy y ln x, 0 where x is 0 and e >= 0; each summed over what was broadcast. Whole
// numbers of whole exponents are exact and wrap; an exponent of 2 or 0.5, which variances and norms
// are written with, is a product or a root. https://onnx.ai/onnx/operators/onnx__Pow.html
#include <algorithm>
#include <cmath>

#include "kernels/core/element_types.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace pow {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  InferContext same = c;
  same.inputs[1].dtype = c.inputs[0].dtype;
  return infer_binary(same);
}

// e in the type of x.
Ref exponent_like(GradBuilder& b) {
  if (b.desc(b.input(1)).dtype == b.desc(b.input(0)).dtype) return b.input(1);
  return b.emit1("CastLike", {b.input(1), b.input(0)});
}

bool may_be_zero(const ConstantPtr& known) {
  if (known == nullptr) return true;
  const std::vector<double> values = to_doubles(known->desc, known->bytes.data());
  return std::ranges::find(values, 0.0) != values.end();
}

// e - 1, and 0 where e is 0: the slope there is 0 x^0, not 0 / x.
Ref lower_exponent(GradBuilder& b, Ref e) {
  const DType dtype = b.desc(e).dtype;
  const Ref lower = b.emit1("Sub", {e, b.scalar(dtype, 1)});
  if (!may_be_zero(b.constant_value(e))) return lower;
  const Ref zero = b.scalar(dtype, 0);
  return b.emit1("Where", {b.emit1("Equal", {e, zero}), zero, lower});
}

Ref grad_of_base(GradBuilder& b, Ref e) {
  const ConstantPtr known = b.constant_value(e);
  const bool square = known != nullptr && known->desc.numel() == 1 && first_double(*known) == 2;
  const Ref power = square ? b.input(0) : b.emit1("Pow", {b.input(0), lower_exponent(b, e)});
  return b.emit1("Mul", {power, e});
}

// y ln x. A base of 0 counts as 1 for e >= 0, so that the slope is 0; for e < 0 it is -inf.
Ref grad_of_exponent(GradBuilder& b, Ref e) {
  const DType dtype = b.desc(e).dtype;
  const Ref zero = b.scalar(dtype, 0), x = b.input(0);
  const Ref base = b.emit1("Where", {b.emit1("Less", {e, zero}), zero, b.scalar(dtype, 1)});
  const Ref safe = b.emit1("Where", {b.emit1("Equal", {x, zero}), base, x});
  return b.emit1("Mul", {b.output(0), b.emit1("Log", {safe})});
}

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref e = exponent_like(b);
  if (b.needs_grad(0)) {
    b.set_grad(0, b.sum_to(b.emit1("Mul", {dy, grad_of_base(b, e)}), b.input(0)));
  }
  if (!b.needs_grad(1)) return;
  b.set_grad(1, b.sum_to(b.emit1("Mul", {dy, grad_of_exponent(b, e)}), b.input(1)));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool whole = is_integer(c.inputs[0].desc.dtype);
  return binary_reference(c, [whole](double x, double e) {
    return whole ? std::trunc(std::pow(x, e)) : std::pow(x, e);
  });
}

// An exponent of 2 or 0.5 for a whole row is a product or a root.
void pow_row(const PointwiseRow& row, const Numbers& numbers) {
  const bool one_exponent = row.step_a == 1 && row.step_b == 0;
  const float e = *static_cast<const float*>(row.b);
  if (one_exponent && e == 2.0f) return float_unary<OFSDP_X(x * x)>()(row, numbers);
  if (one_exponent && e == 0.5f) return float_unary<OFSDP_X(M::sqrt(x))>()(row, numbers);
  float_binary<OFSDP_AB(M::pow(a, b))>()(row, numbers);
}

// --- other types: x of T, e of any, plain loops over a block of exponents read before ---

template <typename T>
T whole_power(T x, int64_t e) {
  if (e < 0) return x == T{1} || (x == T{-1} && e % 2 == 0) ? T{1} : (x == T{-1} ? x : T{0});
  T y = 1;
  for (; e > 0; e /= 2) {
    if (e % 2 != 0) y = wrapping(y, x, [](auto p, auto q) { return p * q; });
    x = wrapping(x, x, [](auto p, auto q) { return p * q; });
  }
  return y;
}

template <typename T>
T mixed_power(T x, double e) {
  return static_cast<T>(std::pow(static_cast<double>(x), e));
}
template <typename T>
T mixed_power(T x, int64_t e) {
  return whole_power(x, e);
}

constexpr int64_t kExponents = 256;

template <typename To>
void read_exponents(DType dtype, const std::byte* e, int64_t step, int64_t n, To* to) {
  with_number(dtype, [&]<typename E>(E) {
    for (int64_t i = 0; i < n; ++i)
      to[i] = static_cast<To>(reinterpret_cast<const E*>(e)[i * step]);
  });
}

template <typename T, typename E>
void mixed_row(const PointwiseRow& row, DType exponent) {
  std::array<E, kExponents> e;
  const auto bytes = static_cast<int64_t>(dtype_size(exponent));
  for (int64_t begin = 0; begin < row.n; begin += kExponents) {
    const int64_t n = std::min(kExponents, row.n - begin);
    const auto* from = static_cast<const std::byte*>(row.b) + begin * row.step_b * bytes;
    read_exponents(exponent, from, row.step_b, n, e.data());
    for (int64_t i = 0; i < n; ++i) {
      const T x = static_cast<const T*>(row.a)[(begin + i) * row.step_a];
      static_cast<T*>(row.y)[begin + i] = mixed_power(x, e[static_cast<size_t>(i)]);
    }
  }
}

constexpr TypeSet kBases = kFloatTypes | type_bit(DType::kInt32) | type_bit(DType::kInt64);

Acceptance accepts_mixed(const Problem& p) {
  return accept_if(in_set(kBases, p.in(0).dtype) && in_set(kNumberTypes, p.in(1).dtype),
                   "no loop for these dtypes");
}

std::unique_ptr<Kernel> create_mixed(const Problem& p) {
  using Row = void (*)(const PointwiseRow&, DType);
  Row row = nullptr;
  const DType exponent = p.in(1).dtype;
  for_types<kBases>([&]<typename T>(T) {
    if (dtype_of<T>() != p.in(0).dtype) return;
    row = mixed_row<T, double>;
    if constexpr (std::is_integral_v<T>) {
      if (is_integer(exponent)) row = mixed_row<T, int64_t>;
    }
  });
  const auto base_bytes = static_cast<int64_t>(dtype_size(p.in(0).dtype));
  const auto bytes = static_cast<int64_t>(dtype_size(exponent));
  return make_kernel([=, loop = binary_loop(p)](const KernelArgs& a) {
    loop.for_rows(0, loop.rows(), [&](const StridedLoop::Offsets& at) {
      row({a.in<std::byte>(0) + at[0] * base_bytes, loop.inner_stride(0),
           a.in<std::byte>(1) + at[1] * bytes, loop.inner_stride(1),
           a.out<std::byte>(0) + at[2] * base_bytes, loop.inner()},
          exponent);
    });
  });
}

}  // namespace pow

void add_pow(Registry& registry) {
  using namespace pow;
  OpDef op = pointwise({.name = "Pow",
                        .min_inputs = 2,
                        .first_opset = 7,
                        .infer = infer,
                        .grad = grad,
                        .reference = reference,
                        .cpu = with_half_floats<accepts_mixed, create_mixed>("loops")});
  PointwiseLoops rows{.operands = 2};
  rows[DType::kFloat32] = pow_row;
  Implementation best = pointwise_kernels("Pow", rows)[0];
  best.name = "rows";
  op.cpu.insert(op.cpu.begin(), best);
  registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
