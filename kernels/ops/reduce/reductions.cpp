// Reductions: sums, means, products, norms and extremes over some axes.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
// Input `axes` (optional) names the axes, keepdims (1) keeps them as 1; without axes everything is
// reduced, or nothing if noop_with_empty_axes is 1. Integers wrap. dx, with dy and y broadcast to
// x's shape:
//
//   ReduceSum         dy            ReduceMean    dy / n         ReduceL1    sign(x) dy, 0 at 0
//   ReduceSumSquare   2 x dy        ReduceL2      x dy / y, and 0 if y is 0
//   ReduceLogSum      dy e^-y       ReduceLogSumExp   dy e^(x - y), y = max + ln sum e^(x - max)
//   ReduceMax, Min    dy / count if x = y, else 0; count is how many elements equal y (PyTorch's
//                     amax). A NaN wins. For bool they are "or" and "and"
//   ReduceProd        ofsdp.ReduceProdGrad (sum_to.cpp)

#include <array>
#include <cmath>
#include <limits>

#include "kernels/core/element_types.h"
#include "kernels/core/memory.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace reduction {
namespace {

// --- axes ---

std::vector<bool> reduced_axes(const Shape& shape, const std::vector<int64_t>& axes,
                               const Attributes& attributes) {
  const bool all = axes.empty() && attributes.i("noop_with_empty_axes", 0) == 0;
  std::vector<bool> reduced(static_cast<size_t>(shape.rank()), all);
  for (int64_t axis : axes) {
    reduced[static_cast<size_t>(axis < 0 ? axis + shape.rank() : axis)] = true;
  }
  return reduced;
}

std::vector<bool> reduced_axes(const Problem& p) {
  const Constant* axes = p.constant(1);
  return reduced_axes(p.in(0).shape, axes == nullptr ? std::vector<int64_t>{} : *int_values(*axes),
                      p.attributes);
}

std::vector<bool> reduced_axes(const GradBuilder& b) {
  const bool named = b.num_inputs() > 1 && b.input(1);
  const auto axes = named ? *int_values(*b.constant_value(b.input(1))) : std::vector<int64_t>{};
  return reduced_axes(b.desc(b.input(0)).shape, axes, b.attributes());
}

// Returns `shape` with a 1 for each reduced axis.
Shape kept_shape(Shape shape, const std::vector<bool>& reduced) {
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (reduced[static_cast<size_t>(axis)]) shape[axis] = 1;
  }
  return shape;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  std::vector<int64_t> axes;
  if (c.has(1)) {
    OFSDP_ASSIGN_OR_RETURN(axes, known_ints(c, 1, "axes"));
  }
  OFSDP_RETURN_IF_ERROR(unique_axes(axes, x.shape.rank()).status());
  const std::vector<bool> reduced = reduced_axes(x.shape, axes, c.attributes);
  std::vector<int64_t> kept;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    if (!reduced[static_cast<size_t>(axis)]) {
      kept.push_back(x.shape[axis]);
    } else if (c.attributes.i("keepdims", 1) != 0) {
      kept.push_back(1);
    }
  }
  return std::vector{TensorDesc{x.dtype, Shape(kept)}};
}

// Returns how many elements one mean has.
double count_of(const Shape& shape, const std::vector<bool>& reduced) {
  double count = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (reduced[static_cast<size_t>(axis)]) count *= static_cast<double>(shape[axis]);
  }
  return count;
}

// --- gradients ---

// Returns `value` (in the output's shape) with a 1 for each reduced axis, so that it broadcasts to
// input 0.
Ref keep_reduced(GradBuilder& b, Ref value) {
  return b.reshape(value, kept_shape(b.desc(b.input(0)).shape, reduced_axes(b)));
}

// Returns `value` broadcast to input 0's shape.
Ref expand_reduced(GradBuilder& b, Ref value) {
  return b.emit1("Expand", {keep_reduced(b, value), b.ints(b.desc(b.input(0)).shape.axes())});
}

void sum_grad(GradBuilder& b) { b.set_grad(0, expand_reduced(b, b.grad_output(0))); }

void mean_grad(GradBuilder& b) {
  const double count = count_of(b.desc(b.input(0)).shape, reduced_axes(b));
  b.set_grad(0, expand_reduced(b, b.mul(b.grad_output(0), count == 0 ? 0 : 1 / count)));
}

void sum_square_grad(GradBuilder& b) {
  const Ref two = b.like(b.input(0), 2);
  b.set_grad(0, b.mul(b.input(0), keep_reduced(b, b.mul(b.grad_output(0), two))));
}

void l1_grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.AbsGrad", {expand_reduced(b, b.grad_output(0)), b.input(0)}));
}

void l2_grad(GradBuilder& b) {
  const Ref y = b.output(0), zero = b.like(y, 0);
  const Ref slope = b.div(b.grad_output(0), y);
  const Ref none = b.emit1("Equal", {y, zero});
  b.set_grad(0, b.mul(b.input(0), keep_reduced(b, b.where(none, zero, slope))));
}

void log_sum_grad(GradBuilder& b) {
  const Ref slope = b.emit1("Exp", {b.neg(b.output(0))});
  b.set_grad(0, expand_reduced(b, b.mul(b.grad_output(0), slope)));
}

void log_sum_exp_grad(GradBuilder& b) {
  const Ref share = b.emit1("Exp", {b.sub(b.input(0), keep_reduced(b, b.output(0)))});
  b.set_grad(0, b.mul(share, keep_reduced(b, b.grad_output(0))));
}

void extreme_grad(GradBuilder& b) {
  const Ref x = b.input(0), y = keep_reduced(b, b.output(0));
  const Ref ones = b.like(x, 1), zeros = b.like(x, 0);
  const Ref mask = b.where(b.emit1("Equal", {x, y}), ones, zeros);
  const Ref count = b.emit1("ofsdp.SumTo", {mask}, {{"shape", b.desc(y).shape.axes()}});
  b.set_grad(0, b.mul(mask, b.div(keep_reduced(b, b.grad_output(0)), count)));
}

// dy gets a 1 for each reduced axis, which identifies these axes.
void prod_grad(GradBuilder& b) {
  const Ref dy = keep_reduced(b, b.grad_output(0));
  b.set_grad(0, b.emit1("ofsdp.ReduceProdGrad", {dy, b.input(0)}));
}

// --- references ---

// Calls f(input element, output element) in input order.
void reference_reduce(const ReferenceContext& c, const std::function<void(size_t, size_t)>& f) {
  const Shape& shape = c.inputs[0].desc.shape;
  std::vector<int64_t> axes;
  if (c.inputs.size() > 1) axes.assign(c.inputs[1].values.begin(), c.inputs[1].values.end());
  const Shape kept = kept_shape(shape, reduced_axes(shape, axes, c.attributes));
  for (int64_t i = 0; i < shape.numel(); ++i) {
    f(static_cast<size_t>(i), ravel_broadcast(kept, unravel(shape, i)));
  }
}

// Computes y[at] = join(y[at], x[i]), from `start`.
RefTensor fold_in_double(const ReferenceContext& c, double start, double (*join)(double, double)) {
  RefTensor y{c.output_descs[0], {}};
  y.values.assign(static_cast<size_t>(y.desc.numel()), start);
  reference_reduce(
      c, [&](size_t x, size_t at) { y.values[at] = join(y.values[at], c.inputs[0].values[x]); });
  return y;
}

template <int start, auto join>
std::vector<RefTensor> folded(const ReferenceContext& c) {
  return {fold_in_double(c, start, join)};
}

double add(double y, double x) { return y + x; }
double add_size(double y, double x) { return y + std::abs(x); }
double add_square(double y, double x) { return y + x * x; }
double multiply(double y, double x) { return y * x; }

std::vector<RefTensor> l2_reference(const ReferenceContext& c) {
  RefTensor y = fold_in_double(c, 0, add_square);
  const bool whole = is_integer(y.desc.dtype);
  for (double& v : y.values) v = whole ? std::floor(std::sqrt(v)) : std::sqrt(v);
  return {y};
}

std::vector<RefTensor> log_sum_reference(const ReferenceContext& c) {
  RefTensor y = fold_in_double(c, 0, add);
  for (double& v : y.values) v = std::log(v);
  return {y};
}

std::vector<RefTensor> log_sum_exp_reference(const ReferenceContext& c) {
  const RefTensor max =
      fold_in_double(c, -INFINITY, [](double y, double x) { return std::max(y, x); });
  RefTensor y{max.desc, std::vector<double>(max.values.size())};
  reference_reduce(c, [&](size_t x, size_t at) {
    y.values[at] += std::exp(c.inputs[0].values[x] - max.values[at]);
  });
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] = max.values[i] + std::log(y.values[i]);
  return {y};
}

std::vector<RefTensor> mean_reference(const ReferenceContext& c) {
  const auto outputs = static_cast<size_t>(c.output_descs[0].numel());
  RefTensor y{c.output_descs[0], std::vector<double>(outputs)};
  std::vector<double> counts(outputs);
  reference_reduce(c, [&](size_t x, size_t at) {
    y.values[at] += c.inputs[0].values[x];
    counts[at] += 1;
  });
  for (size_t i = 0; i < outputs; ++i) y.values[i] /= counts[i];
  return {y};
}

std::pair<double, double> range_of(DType dtype) {
  if (is_floating(dtype)) return {-INFINITY, INFINITY};
  return with_number(dtype, [](auto zero) -> std::pair<double, double> {
    using Limits = std::numeric_limits<decltype(zero)>;
    return {static_cast<double>(Limits::lowest()), static_cast<double>(Limits::max())};
  });
}

template <bool largest>
std::vector<RefTensor> extreme_reference(const ReferenceContext& c) {
  const auto [lowest, highest] = range_of(c.output_descs[0].dtype);
  return {fold_in_double(c, largest ? lowest : highest, [](double y, double x) {
    return std::isnan(x) || (largest ? x > y : x < y) ? x : y;
  })};
}

// --- kernels ---

Acceptance accepts_floats(const Problem& p) {
  return accept_if(p.in(0).dtype == DType::kFloat32 && p.all_plain(), "not plain float32");
}

// Reduces float32, then calls finish(y) for each output.
template <ReduceKind kind, float (*finish)(float) = nullptr>
std::unique_ptr<Kernel> create_reduction(const Problem& p) {
  return make_kernel([reduction = Reduction(p.in(0).shape, reduced_axes(p), kind),
                      n = p.out(0).numel()](const KernelArgs& a) {
    float* y = a.out<float>(0);
    reduction.run(a.in<float>(0), y);
    if constexpr (finish != nullptr) {
      for (int64_t i = 0; i < n; ++i) y[i] = finish(y[i]);
    }
  });
}

float root(float y) { return std::sqrt(y); }
float logarithm(float y) { return std::log(y); }

std::unique_ptr<Kernel> create_mean(const Problem& p) {
  const auto reduced = reduced_axes(p);
  const double count = count_of(p.in(0).shape, reduced);
  const float scale = count == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : static_cast<float>(1 / count);  // no elements have no mean
  return make_kernel([sum = Reduction(p.in(0).shape, reduced, ReduceKind::kSum), scale](
                         const KernelArgs& a) { sum.run(a.in<float>(0), a.out<float>(0), scale); });
}

// An infinite maximum is not subtracted: infinity - infinity has no value.
OFSDP_MULTIARCH void exp_row(const BinaryRow<float>& row) {
  binary_row(row, [](float x, float max) {
    return vector_exp(x - (__builtin_fabsf(max) > 3.4e38f ? 0.0f : max));
  });
}

std::unique_ptr<Kernel> create_log_sum_exp(const Problem& p) {
  const auto reduced = reduced_axes(p);
  const Shape kept = kept_shape(p.in(0).shape, reduced);
  const Reduction max(p.in(0).shape, reduced, ReduceKind::kMax);
  const Reduction sum(p.in(0).shape, reduced, ReduceKind::kSum);
  // x - max like a Sub of x and the maxima
  Problem shift{{}, {p.in(0), {DType::kFloat32, kept}}, {p.in(0)}, {}};
  const size_t maxima = align_up(p.out(0).bytes(), kTensorAlignment);
  return make_kernel(
      [=, loop = binary_loop(shift), n = p.out(0).numel()](const KernelArgs& a) {
        auto* most = reinterpret_cast<float*>(a.workspace);
        auto* terms = reinterpret_cast<float*>(a.workspace + maxima);
        max.run(a.in<float>(0), most);
        run_binary<float, float, exp_row>(loop, a.in<float>(0), most, terms);
        sum.run(terms, a.out<float>(0));
        float* y = a.out<float>(0);
        for (int64_t i = 0; i < n; ++i) {
          y[i] = std::log(y[i]) + (std::isinf(most[i]) ? 0.0f : most[i]);
        }
      },
      maxima + p.in(0).bytes());
}

using Create = std::unique_ptr<Kernel> (*)(const Problem&);

// Returns kernels for float32, 16-bit floats, then every other numeric type, and bool if `of_bool`.
std::vector<Implementation> kernels_of(Create create, FoldOne (*fold)(DType), bool of_bool) {
  const Implementation blocks{"blocks", accepts_floats, create};
  const auto accepts = [of_bool](const Problem& p) {
    const DType dtype = p.in(0).dtype;
    const bool number = is_integer(dtype) || dtype == DType::kFloat64;
    return accept_if(p.all_plain() && (number || (of_bool && dtype == DType::kBool)),
                     "not plain, or a type without a loop");
  };
  const auto create_loops = [fold](const Problem& p) {
    return create_fold(fold(p.in(0).dtype), p.in(0).dtype, p.in(0).shape, reduced_axes(p));
  };
  return {blocks, in_float32(blocks), {"loops", accepts, create_loops}};
}

// --- the table ---

struct ReduceOp {
  struct Functions {
    GradFn grad;
    ReferenceFn reference;
    Create create;           // float32
    FoldOne (*fold)(DType);  // other types
  };
  const char* name;
  int first_opset = 18;
  Functions functions;
  bool of_bool = false;  // has a bool loop
};

std::vector<ReduceOp> reductions() {
  return {
      {.name = "ReduceSum",
       .first_opset = 13,
       .functions = {sum_grad, folded<0, add>, create_reduction<ReduceKind::kSum>,
                     wrapping_fold_of<SumFold>}},
      {.name = "ReduceMean",
       .functions = {mean_grad, mean_reference, create_mean, fold_of<MeanFold>}},
      {.name = "ReduceSumSquare",
       .functions = {sum_square_grad, folded<0, add_square>,
                     create_reduction<ReduceKind::kSumSquares>, wrapping_fold_of<SumSquaresFold>}},
      {.name = "ReduceL1",
       .functions = {l1_grad, folded<0, add_size>, create_reduction<ReduceKind::kSumAbs>,
                     fold_of<SumAbsFold>}},
      {.name = "ReduceL2",
       .functions = {l2_grad, l2_reference, create_reduction<ReduceKind::kSumSquares, root>,
                     fold_of<NormFold>}},
      {.name = "ReduceLogSum",
       .functions = {log_sum_grad, log_sum_reference, create_reduction<ReduceKind::kSum, logarithm>,
                     fold_of<LogSumFold>}},
      {.name = "ReduceLogSumExp",
       .functions = {log_sum_exp_grad, log_sum_exp_reference, create_log_sum_exp,
                     fold_of<LogSumExpFold>}},
      {.name = "ReduceProd",
       .functions = {prod_grad, folded<1, multiply>, create_reduction<ReduceKind::kProduct>,
                     wrapping_fold_of<ProductFold>}},
      {.name = "ReduceMax",
       .first_opset = 20,
       .functions = {extreme_grad, extreme_reference<true>, create_reduction<ReduceKind::kMax>,
                     fold_of<MaxFold>},
       .of_bool = true},
      {.name = "ReduceMin",
       .first_opset = 20,
       .functions = {extreme_grad, extreme_reference<false>, create_reduction<ReduceKind::kMin>,
                     fold_of<MinFold>},
       .of_bool = true},
  };
}

}  // namespace
}  // namespace reduction

void add_reductions(Registry& registry) {
  using namespace reduction;
  for (const ReduceOp& op : reductions()) {
    registry.add(make_op(op.name, {infer, op.functions.grad, op.functions.reference},
                         kernels_of(op.functions.create, op.functions.fold, op.of_bool),
                         {.first_opset = op.first_opset, .constant_inputs = {1}}));
  }
}

// ArgMax(x) and ArgMin(x), attributes axis, keepdims, select_last_index: the index of the largest
// or smallest element along the axis, int64. If several are equal, the first, or the last if
// select_last_index is 1. Every numeric dtype. As in NumPy, a line's first NaN is the result. No
// gradient. https://onnx.ai/onnx/operators/onnx__ArgMax.html

namespace arg_extremes {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& shape = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(c.attributes.i("axis", 0), shape.rank()));
  std::vector<int64_t> axes = shape.axes();
  axes[static_cast<size_t>(axis)] = 1;
  if (c.attributes.i("keepdims", 1) == 0) axes.erase(axes.begin() + axis);
  const Shape out(axes);
  if (shape[axis] == 0 && out.numel() > 0) {
    return input_error("axis {} of {} is empty, expected at least one element", axis, shape.text());
  }
  return std::vector{TensorDesc{DType::kInt64, out}};
}

// Returns whether `value` replaces `best`, which comes before it.
template <bool largest, bool last, typename T>
[[gnu::always_inline]] inline bool replaces(T value, T best) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(best)) return last && std::isnan(value);
    if (std::isnan(value)) return true;
  }
  if constexpr (largest) return last ? value >= best : value > best;
  return last ? value <= best : value < best;
}

template <bool largest>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const Lines lines = lines_along(c.inputs[0].desc.shape, c.attributes.i("axis", 0));
  const bool last = c.attributes.i("select_last_index", 0) != 0;
  const auto& x = c.inputs[0].values;
  for (int64_t line = 0; line < lines.count(); ++line) {
    int64_t best = 0;
    auto at = [&](int64_t k) {
      return x[static_cast<size_t>(lines.at(line / lines.inner, k, line % lines.inner))];
    };
    for (int64_t k = 1; k < lines.n; ++k) {
      const bool better = largest ? at(k) > at(best) : at(k) < at(best);
      if (better || (last && at(k) == at(best))) best = k;
    }
    y.values.push_back(static_cast<double>(best));
  }
  return {y};
}

// Handles neighbouring lines side by side, so that columns are as fast as rows.
template <bool largest, bool last, typename T>
void extreme_block(const Lines& lines, const T* x, int64_t* y, int64_t count) {
  std::array<T, kLineBlock> best;
  std::copy_n(x, count, best.begin());
  std::fill_n(y, count, 0);
  for (int64_t k = 1; k < lines.n; ++k) {
    const T* row = x + k * lines.inner;
    for (int64_t j = 0; j < count; ++j) {
      const auto at = static_cast<size_t>(j);
      const bool better = replaces<largest, last>(row[j], best[at]);
      best[at] = better ? row[j] : best[at];
      y[j] = better ? k : y[j];
    }
  }
}

using Block = void (*)(const Lines& lines, const std::byte* x, int64_t* y, int64_t count);

template <bool largest, bool last>
Block block_of(DType dtype) {
  return with_number(dtype, []<typename T>(T) -> Block {
    return [](const Lines& lines, const std::byte* x, int64_t* y, int64_t count) {
      extreme_block<largest, last>(lines, reinterpret_cast<const T*>(x), y, count);
    };
  });
}

template <bool largest>
std::unique_ptr<Kernel> create(const Problem& p) {
  const bool last = p.attributes.i("select_last_index", 0) != 0;
  const DType dtype = p.in(0).dtype;
  const Block block = last ? block_of<largest, true>(dtype) : block_of<largest, false>(dtype);
  const auto bytes = static_cast<int64_t>(dtype_size(dtype));
  return make_kernel([lines = lines_along(p.in(0).shape, p.attributes.i("axis", 0)), block,
                      bytes](const KernelArgs& a) {
    for_line_blocks(lines, [&](int64_t o, int64_t begin, int64_t end) {
      block(lines, a.in<std::byte>(0) + lines.at(o, 0, begin) * bytes,
            a.out<int64_t>(0) + o * lines.inner + begin, end - begin);
    });
  });
}

template <bool largest>
OpDef arg_extreme(const char* name) {
  return {.name = name,
          .infer = infer,
          .reference = reference<largest>,
          .cpu = with_half_floats<accepts_plain_numbers, create<largest>>("lines")};
}

}  // namespace
}  // namespace arg_extremes

void add_arg_extreme(Registry& registry) {
  using namespace arg_extremes;
  registry.add(arg_extreme<true>("ArgMax"));
  registry.add(arg_extreme<false>("ArgMin"));
}

}  // namespace ofsdp::kernels::ops
