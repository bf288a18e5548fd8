// Arithmetic on two inputs that broadcast, for all numeric types. Integers wrap; Div rounds them
// towards 0. An integer divisor of 0 is an error in the data.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Add, Sub   da = dy, db = +-dy                Mul   da = dy b, db = dy a
//   Div        da = dy / b, db = -dy y / b
//   Mod        y = a - q b with q = floor(a / b), or trunc(a / b) with fmod = 1, so y has b's sign,
//              or a's; da = dy, db = -dy q, with q = (a - y) / b, rounded
//   PRelu      y = x if x >= 0, else slope x; slope broadcasts to x. dx = dy if x > 0, else
//              dy slope; dslope = dy x if x < 0, else 0
//
// Gradients are summed over the axes along which an input was broadcast.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/element_types.h"
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
  // Sums before negating: the sum may be much smaller.
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

// Returns wrapping_quotient's remainder, which has a's sign.
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

// Returns `kernel`, or, if input 1 has integers, a kernel that looks for zeros first.
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

// Pow(x, e): y = x^e, broadcast, in x's type; e may have another. dx = dy e x^(e-1), 0 if e is 0;
// de = dy y ln x, 0 if x is 0 and e >= 0; each summed over the broadcast axes. Integer powers of
// integers are exact and wrap. If an exponent is 2 or 0.5, as in variances and norms, the power is
// a product or a root. https://onnx.ai/onnx/operators/onnx__Pow.html

namespace pow {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  InferContext same = c;
  same.inputs[1].dtype = c.inputs[0].dtype;
  return infer_binary(same);
}

// Returns e in x's type.
Ref exponent_like(GradBuilder& b) {
  if (b.desc(b.input(1)).dtype == b.desc(b.input(0)).dtype) return b.input(1);
  return b.emit1("CastLike", {b.input(1), b.input(0)});
}

bool may_be_zero(const ConstantPtr& known) {
  if (known == nullptr) return true;
  const std::vector<double> values = to_doubles(known->desc, known->bytes.data());
  return std::ranges::find(values, 0.0) != values.end();
}

// Returns e - 1, but 0 if e is 0: there the slope is 0 x^0, not 0 / x.
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

// Returns y ln x. If e >= 0, a base of 0 counts as 1, so the slope is 0; if e < 0, it is -inf.
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

// If one exponent of 2 or 0.5 serves the whole row, computes a product or a root.
void pow_row(const PointwiseRow& row, const Numbers& numbers) {
  const bool one_exponent = row.step_a == 1 && row.step_b == 0;
  const float e = *static_cast<const float*>(row.b);
  if (one_exponent && e == 2.0f) return float_unary<OFSDP_X(x * x)>()(row, numbers);
  if (one_exponent && e == 0.5f) return float_unary<OFSDP_X(M::sqrt(x))>()(row, numbers);
  float_binary<OFSDP_AB(M::pow(a, b))>()(row, numbers);
}

// --- other types: x of type T, e of any type; plain loops over blocks of exponents read before ---

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

// Operators that combine any number of inputs, which broadcast to each other, from first to last:
// Sum, Mean, Max and Min (NaN if an input is NaN).
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// Gradients, each summed over the broadcast axes: Sum dy, Mean dy / n, Max and Min dy where x
// equals y. 16-bit floats are combined in float32 and rounded once.

namespace variadic {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  TensorDesc y = c.inputs[0];
  for (const TensorDesc& x : c.inputs) {
    if (x.dtype != y.dtype) {
      return input_error("expected inputs of one type, found {} and {}", y.text(), x.text());
    }
    OFSDP_ASSIGN_OR_RETURN(y.shape, broadcast(y.shape, x.shape));
  }
  y.layout = Layout::kPlain;
  for (const TensorDesc& x : c.inputs) {
    if (x.shape == y.shape) y.layout = x.layout;
  }
  return std::vector{std::move(y)};
}

// dx = dy where x equals y, shared evenly among all inputs that equal y, as in PyTorch.
void grad_of_chosen(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (b.num_inputs() == 1) return b.set_grad(0, dy);
  const Ref zero = b.like(dy, 0), one = b.like(dy, 1);
  std::vector<Ref> hits;
  Ref count;
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    hits.push_back(b.emit1("Equal", {b.input(i), b.output(0)}));
    const Ref here = b.where(hits[i], one, zero);
    count = i == 0 ? here : b.add(count, here);
  }
  const Ref share = b.div(dy, count);
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (!b.needs_grad(i)) continue;
    b.set_grad(i, b.sum_to(b.where(hits[i], share, zero), b.input(i)));
  }
}

// --- kernels: y = f(f(x0, x1), x2) ..., one pass over y per input; y may be input 0 or 1 ---

class FoldKernel final : public Kernel {
 public:
  // `finish` is applied to the result at the end; it gets the input count.
  FoldKernel(const Problem& p, RowLoop join, RowLoop finish)
      : join_(join),
        finish_(finish),
        n_(p.out(0).numel()),
        bytes_(static_cast<int64_t>(dtype_size(p.out(0).dtype))) {
    const TensorDesc& y = p.out(0);
    for (size_t i = 1; i < p.inputs.size(); ++i) {
      const auto left = i == 1 ? broadcast_strides(p.in(0), y.shape) : strides_of(y);
      loops_.push_back({y.shape, {left, broadcast_strides(p.in(i), y.shape), strides_of(y)}});
    }
  }

  Status run(const KernelArgs& a) override {
    auto* y = a.out<std::byte>(0);
    if (loops_.empty() && a.in<std::byte>(0) != y) std::copy_n(a.in<std::byte>(0), n_ * bytes_, y);
    for (size_t k = 0; k < loops_.size(); ++k) {
      const StridedLoop& loop = loops_[k];
      const std::byte* left = k == 0 ? a.in<std::byte>(0) : y;
      for_loop_rows(loop, [&](const StridedLoop::Offsets& at, int64_t n) {
        join_({left + at[0] * bytes_, loop.inner_stride(0), a.in<std::byte>(k + 1) + at[1] * bytes_,
               loop.inner_stride(1), y + at[2] * bytes_, n},
              {});
      });
    }
    if (finish_ == nullptr) return ok_status();
    const Numbers count{static_cast<float>(loops_.size() + 1)};
    parallel_for(n_, kElementGrain, [&](int64_t begin, int64_t end) {
      std::byte* at = y + begin * bytes_;
      finish_({at, 1, nullptr, 0, at, end - begin}, count);
    });
    return ok_status();
  }

 private:
  std::vector<StridedLoop> loops_;  // loop k joins y (input 0 if k is 0) and input k + 1
  RowLoop join_, finish_;
  int64_t n_, bytes_;
};

OpDef fold(OpDef op, const PointwiseLoops& join, const PointwiseLoops& finish = {}) {
  TypeSet types = 0;
  for (size_t i = 0; i < join.of.size(); ++i) types |= TypeSet{join.of[i] != nullptr} << i;
  const auto accepts = [join](const Problem& p) {
    if (join[p.in(0).dtype] == nullptr) return Acceptance::refuse("no loop for this dtype");
    if (!p.all_dtype(p.in(0).dtype)) return Acceptance::refuse("inputs of two dtypes");
    return accept_if(p.inputs.size() > 1 || p.in(0).layout == p.out(0).layout,
                     "input and output of two layouts");
  };
  const auto create = [join, finish](const Problem& p) -> std::unique_ptr<Kernel> {
    return std::make_unique<FoldKernel>(p, join[p.in(0).dtype], finish[p.in(0).dtype]);
  };
  const Implementation loops{"loops", accepts, create};
  op.first_opset = 13;
  op.infer = infer;
  op.cpu = {loops, in_float32(loops)};
  op.inplace_inputs = {0, 1};
  op.layout = LayoutRule::kElementwise;
  return op;
}

// --- references ---

template <auto f>  // f takes all inputs' values for one element
std::vector<RefTensor> of_all(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    std::vector<double> values;
    for (const RefTensor& x : c.inputs) {
      values.push_back(x.values[ravel_broadcast(x.desc.shape, index)]);
    }
    y.values.push_back(f(values));
  }
  return {y};
}

double total(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

double mean(const std::vector<double>& x) { return total(x) / static_cast<double>(x.size()); }

double largest(const std::vector<double>& x) {
  double y = x[0];
  for (double v : x) y = std::isnan(v) || v > y ? v : y;
  return y;
}

double smallest(const std::vector<double>& x) {
  double y = x[0];
  for (double v : x) y = std::isnan(v) || v < y ? v : y;
  return y;
}

void sum_grad(GradBuilder& b) {
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(b.grad_output(0), b.input(i)));
  }
}

void mean_grad(GradBuilder& b) {
  const Ref part = b.mul(b.grad_output(0), 1.0 / static_cast<double>(b.num_inputs()));
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(part, b.input(i)));
  }
}

std::vector<OpDef> operators() {
  const PointwiseLoops add = chain_loops(ChainOp::kAdd);
  return {fold({.name = "Sum", .grad = sum_grad, .reference = of_all<total>}, add),
          fold({.name = "Mean", .grad = mean_grad, .reference = of_all<mean>}, add,
               unary_loops<OFSDP_X(x / k.a)>()),
          fold({.name = "Max",
                .grad = grad_of_chosen,
                .reference = of_all<largest>,
                .reads_number = true},
               binary_loops<OFSDP_AB(a > b || a != a ? a : b), kNumberTypes>()),
          fold({.name = "Min",
                .grad = grad_of_chosen,
                .reference = of_all<smallest>,
                .reads_number = true},
               binary_loops<OFSDP_AB(a < b || a != a ? a : b), kNumberTypes>())};
}

}  // namespace variadic

void add_variadic(Registry& registry) {
  using namespace variadic;
  for (OpDef& op : operators()) registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
