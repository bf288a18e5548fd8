// Pow(x, e): y = x^e, broadcast, in the type of x; e may have another. dx = dy e x^(e-1), 0 where e
// is 0; de = dy y ln x, 0 where y is 0; each summed over what was broadcast. Whole numbers of
// whole exponents are exact and wrap; an exponent of 2 or 0.5, which variances and norms are
// written with, is a product or a root. https://onnx.ai/onnx/operators/onnx__Pow.html
#include <cmath>

#include "kernels/cpu/integer_math.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

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

Ref grad_of_base(GradBuilder& b, Ref e) {
  const DType dtype = b.desc(e).dtype;
  const ConstantPtr known = b.constant_value(e);
  const bool square = known != nullptr && known->desc.numel() == 1 &&
                      to_doubles(known->desc, known->bytes.data())[0] == 2;
  const Ref lower = square ? Ref{} : b.emit1("Sub", {e, b.scalar(dtype, 1)});
  const Ref power = square ? b.input(0) : b.emit1("Pow", {b.input(0), lower});
  const Ref slope = b.emit1("Mul", {power, e});
  if (known != nullptr) return slope;
  const Ref zero = b.scalar(dtype, 0);
  return b.emit1("Where", {b.emit1("Equal", {e, zero}), zero, slope});
}

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref e = exponent_like(b);
  if (b.needs_grad(0)) {
    b.set_grad(0, b.sum_to(b.emit1("Mul", {dy, grad_of_base(b, e)}), b.input(0)));
  }
  if (!b.needs_grad(1)) return;
  const Ref slope = b.emit1("Mul", {b.output(0), b.emit1("Log", {b.input(0)})});
  const Ref zero = b.scalar(b.desc(dy).dtype, 0);
  const Ref none = b.emit1("Equal", {b.output(0), zero});
  const Ref de = b.emit1("Mul", {dy, b.emit1("Where", {none, zero, slope})});
  b.set_grad(1, b.sum_to(de, b.input(1)));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool whole = is_integer(c.inputs[0].desc.dtype);
  return binary_reference(c, [whole](double x, double e) {
    return whole ? std::trunc(std::pow(x, e)) : std::pow(x, e);
  });
}

OFSDP_MULTIARCH void square(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return v * v; });
}

OFSDP_MULTIARCH void root(const float* x, float* y, int64_t n) {
  unary_row(x, y, n, [](float v) { return __builtin_sqrtf(v); });
}

OFSDP_MULTIARCH void powers(const BinaryRow<float>& row) {
  binary_row(row, [](float x, float e) { return vector_pow(x, e); });
}

void pow_row(const BinaryRow<float>& row) {
  const bool one_exponent = row.step_a == 1 && row.step_b == 0;
  if (one_exponent && *row.b == 2.0f) return square(row.a, row.y, row.n);
  if (one_exponent && *row.b == 0.5f) return root(row.a, row.y, row.n);
  powers(row);
}

// --- other types: x of T, e of any, both plain loops ---

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

template <typename T, typename E>
T mixed_power(T x, E e) {
  if constexpr (std::is_integral_v<T> && std::is_integral_v<E>) {
    return whole_power(x, static_cast<int64_t>(e));
  } else {
    return static_cast<T>(std::pow(static_cast<double>(x), static_cast<double>(e)));
  }
}

constexpr TypeSet kBases = kFloatTypes | type_bit(DType::kInt32) | type_bit(DType::kInt64);

bool accepts_mixed(const Problem& p) {
  return in_set(kBases, p.in(0).dtype) && in_set(kNumberTypes, p.in(1).dtype);
}

template <typename T, typename E>
void mixed_rows(const StridedLoop& loop, const KernelArgs& a) {
  loop.for_rows(0, loop.rows(), [&](const StridedLoop::Offsets& at) {
    for (int64_t i = 0; i < loop.inner(); ++i) {
      a.out<T>(0)[at[2] + i * loop.inner_stride(2)] =
          mixed_power(a.in<T>(0)[at[0] + i * loop.inner_stride(0)],
                      a.in<E>(1)[at[1] + i * loop.inner_stride(1)]);
    }
  });
}

std::unique_ptr<Kernel> create_mixed(const Problem& p) {
  return kernel_for<kBases>(p.in(0).dtype, [&p](auto base) {
    return kernel_for<kNumberTypes>(p.in(1).dtype, [&p](auto exponent) {
      return make_kernel([loop = binary_loop(p)](const KernelArgs& a) {
        mixed_rows<decltype(base), decltype(exponent)>(loop, a);
        return ok_status();
      });
    });
  });
}

void positive(size_t input, std::vector<double>& values) {
  if (input != 0) return;
  for (double& v : values) v = std::abs(v) + (v == std::floor(v) ? 1 : 0.5);
}

void whole_and_positive(size_t, std::vector<double>& values) {
  for (double& v : values) v = 1 + std::floor(std::abs(v));
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = binary_samples(positive);
  const TensorDesc x{DType::kFloat32, {3, 7}};
  for (double e : {2.0, 0.5, 3.0, -1.0, 0.0}) {
    list.push_back({.name = format_text("exponent_{}", e),
                    .inputs = {x, {DType::kFloat32, {}}},
                    .fill =
                        [e](size_t input, std::vector<double>& values) {
                          positive(input, values);
                          if (input == 1) values[0] = e;
                        },
                    .constant_inputs = {1}});
  }
  list.push_back({.name = "zero_exponents",
                  .inputs = {x, {DType::kFloat32, {7}}},
                  .fill = fill_with(1, {0, 2, 3, 0, 1, 2, 4}),
                  .check_grad = false});
  for (DType base : types_in(kBases)) {
    for (DType e : {base, DType::kInt64, DType::kUInt8, DType::kFloat32}) {
      list.push_back(sample_of(base, std::string(dtype_name(e)), {{9}, {9}}, whole_and_positive));
      list.back().inputs[1].dtype = e;
      if (base != e) list.back().check_grad = false;
    }
  }
  return list;
}

}  // namespace

void add_pow(Registry& registry) {
  OpDef op = pointwise({.name = "Pow",
                        .min_inputs = 2,
                        .first_opset = 7,
                        .infer = infer,
                        .grad = grad,
                        .reference = reference,
                        .cpu = kernels_by<accepts_mixed, create_mixed>(),
                        .samples = samples});
  op.cpu.insert(op.cpu.begin(),
                {"rows", accepts_binary<float>, create_binary<float, float, pow_row>});
  registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
