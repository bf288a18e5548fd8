// Softmax(x), LogSoftmax(x) and Hardmax(x), attribute axis.
//
//   Softmax     y_c = e^x_c / sum_k e^x_k        dx_c = y_c (dy_c - sum_k dy_k y_k)
//   LogSoftmax  y_c = x_c - ln sum_k e^x_k       dx_c = dy_c - e^y_c sum_k dy_k
//   Hardmax     1 at the first largest element along the axis, 0 elsewhere; dx = 0
//
// The gradients are ofsdp.SoftmaxGrad(dy, y) and ofsdp.LogSoftmaxGrad(dy, y): they need y alone, so
// x is not saved. https://onnx.ai/onnx/operators/onnx__Softmax.html
// https://onnx.ai/onnx/operators/onnx__LogSoftmax.html
// https://onnx.ai/onnx/operators/onnx__Hardmax.html

#include "kernels/cpu/softmax.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace softmaxes {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank()).status());
  return std::vector{c.inputs[0]};
}

SoftmaxParams extent(const Shape& shape, const Attributes& attributes) {
  const int64_t axis = attributes.i("axis", -1);
  return softmax_extent(shape, static_cast<int>(axis < 0 ? axis + shape.rank() : axis));
}

template <bool logarithm>
void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1(logarithm ? "ofsdp.LogSoftmaxGrad" : "ofsdp.SoftmaxGrad",
                        {b.grad_output(0), b.output(0)}, {{"axis", b.attributes().i("axis", -1)}}));
}

// Calls f(first, step) for each distribution; it has `classes` elements, first, first + step, ...
void reference_walk(const SoftmaxParams& e, const auto& f) {
  for (int64_t i = 0; i < e.outer * e.inner; ++i) {
    f(static_cast<size_t>(i / e.inner * e.classes * e.inner + i % e.inner),
      static_cast<size_t>(e.inner));
  }
}

template <bool logarithm>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const SoftmaxParams e = extent(y.desc.shape, c.attributes);
  const auto classes = static_cast<size_t>(e.classes);
  reference_walk(e, [&](size_t first, size_t step) {
    double max = -INFINITY;
    double sum = 0;
    for (size_t k = 0; k < classes; ++k) max = std::max(max, y.values[first + k * step]);
    for (size_t k = 0; k < classes; ++k) sum += std::exp(y.values[first + k * step] - max);
    for (size_t k = 0; k < classes; ++k) {
      double& v = y.values[first + k * step];
      v = logarithm ? v - max - std::log(sum) : std::exp(v - max) / sum;
    }
  });
  return {y};
}

template <bool logarithm>
std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], c.inputs[0].values};
  const std::vector<double>&dy = c.inputs[0].values, &y = c.inputs[1].values;
  const SoftmaxParams e = extent(dx.desc.shape, c.attributes);
  const size_t classes = static_cast<size_t>(e.classes);
  reference_walk(e, [&](size_t first, size_t step) {
    double sum = 0;
    const size_t end = first + classes * step;
    for (size_t at = first; at < end; at += step) sum += logarithm ? dy[at] : dy[at] * y[at];
    for (size_t at = first; at < end; at += step) {
      dx.values[at] = logarithm ? dy[at] - std::exp(y[at]) * sum : y[at] * (dy[at] - sum);
    }
  });
  return {dx};
}

// `run` is a function in kernels/cpu/softmax.h, or loops in double.
template <typename T, auto run>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    run(e, a.in<T>(0), a.out<T>(0));
  });
}

template <typename T, auto run>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([e = extent(p.out(0).shape, p.attributes)](const KernelArgs& a) {
    run(e, a.in<T>(0), a.in<T>(1), a.out<T>(0));
  });
}

void softmax_grad_body(BodyBuilder& b) {
  const Ref y = b.input(1), product = b.mul(b.input(0), y);
  b.set_output(0, b.sub(product, b.mul(y, b.sum(product, {b.attributes().i("axis", -1)}))));
}

void log_softmax_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0);
  const Ref sum = b.sum(dy, {b.attributes().i("axis", -1)});
  b.set_output(0, b.sub(dy, b.mul(b.emit1("Exp", {b.input(1)}), sum)));
}

// Registers the operator, and its gradient in our domain, named like the operator plus "Grad".
template <bool logarithm>
void add(Registry& registry, const std::string& name, std::vector<Implementation> kernels,
         std::vector<Implementation> grad_kernels) {
  registry.add(make_op(name, {infer, grad<logarithm>, reference<logarithm>}, std::move(kernels),
                       {.first_opset = 13, .inplace_inputs = {0}}));
  registry.add_own(make_op(name + "Grad", {infer, nullptr, grad_reference<logarithm>},
                           std::move(grad_kernels),
                           {.min_inputs = 2,
                            .body = logarithm ? log_softmax_grad_body : softmax_grad_body,
                            .inplace_inputs = {0, 1}}));
}

// --- Hardmax ---

void hardmax_grad(GradBuilder& b) {
  const TensorDesc& x = b.desc(b.input(0));
  b.set_grad(0, b.emit1("Expand", {b.scalar(x.dtype, 0), b.ints(x.shape.axes())}));
}

template <typename T>
void hardmax(const SoftmaxParams& e, const T* x, T* y) {
  for_distributions(e, [&](int64_t first) {
    int64_t best = 0;
    for (int64_t k = 1; k < e.classes; ++k) {
      if (x[first + k * e.inner] > x[first + best * e.inner]) best = k;
    }
    for (int64_t k = 0; k < e.classes; ++k) y[first + k * e.inner] = k == best ? T{1} : T{0};
  });
}

std::vector<RefTensor> hardmax_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  hardmax(extent(y.desc.shape, c.attributes), c.inputs[0].values.data(), y.values.data());
  return {y};
}

}  // namespace
}  // namespace softmaxes

void add_softmax(Registry& registry) {
  using namespace softmaxes;
  add<false>(registry, "Softmax",
             plain_float_kernels<create<float, softmax>, create<double, softmax_loops>>("rows"),
             plain_float_kernels<create_grad<float, softmax_grad>,
                                 create_grad<double, softmax_grad_loops<false>>>("rows"));
  add<true>(
      registry, "LogSoftmax",
      plain_float_kernels<create<float, log_softmax>, create<double, log_softmax_loops>>("rows"),
      plain_float_kernels<create_grad<float, log_softmax_grad>,
                          create_grad<double, softmax_grad_loops<true>>>("rows"));
  registry.add(make_op(
      "Hardmax", {infer, hardmax_grad, hardmax_reference},
      plain_float_kernels<create<float, hardmax<float>>, create<double, hardmax<double>>>("loops"),
      {.first_opset = 13}));
}

// LpNormalization(x), attributes axis, p (1 or 2): y = x / n with n = sum |x| or sqrt(sum x^2)
// along the axis; 0 if n is 0. With s = sum dy y: dx = (dy - sign(x) s) / n for p = 1, (dy - y s) /
// n for p = 2, and 0 if n is 0.
// https://onnx.ai/onnx/operators/onnx__LpNormalization.html
//
// MeanVarianceNormalization(x), attribute axes (default 0, 2, 3): with c = x - mean and s =
// sqrt(mean c^2) over the axes, y = c / (s + 1e-9). With a = dy / (s + 1e-9):
//   dx = a - mean(a) - c mean(a c) / (s (s + 1e-9)); the last term is 0 if s is.
// https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html

namespace axis_normalizations {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const int64_t p = c.attributes.i("p", 2);
  if (p != 1 && p != 2) return input_error("attribute 'p': expected 1 or 2, found {}", p);
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank()).status());
  return std::vector{c.inputs[0]};
}

SoftmaxParams extent(const Shape& shape, const Attributes& attributes) {
  const int64_t axis = attributes.i("axis", -1);
  return softmax_extent(shape, static_cast<int>(axis < 0 ? axis + shape.rank() : axis));
}

void grad(GradBuilder& b) {
  const bool first = b.attributes().i("p", 2) == 1;
  const Ref dy = b.grad_output(0), x = b.input(0), y = b.output(0);
  const Ref axes = b.ints({b.attributes().i("axis", -1)});
  const Ref zero = b.scalar(b.desc(x).dtype, 0), one = b.scalar(b.desc(x).dtype, 1);
  const Ref norm = b.emit1(first ? "ReduceL1" : "ReduceL2", {x, axes});
  const Ref inv =
      b.emit1("Where", {b.emit1("Equal", {norm, zero}), zero, b.emit1("Div", {one, norm})});
  const Ref dot = b.emit1("ReduceSum", {b.emit1("Mul", {dy, y}), axes});
  const Ref shape = b.ints(b.desc(x).shape.axes());
  const Ref along = first ? b.emit1("ofsdp.AbsGrad", {b.emit1("Expand", {dot, shape}), x})
                          : b.emit1("Mul", {y, dot});
  b.set_grad(0, b.emit1("Mul", {b.emit1("Sub", {dy, along}), inv}));
}

template <typename T>
void normalize(const SoftmaxParams& e, bool first, const T* x, T* y) {
  for_distributions(e, [&](int64_t at) {
    T sum = 0;
    for (int64_t k = 0; k < e.classes; ++k) {
      const T v = x[at + k * e.inner];
      sum += first ? std::abs(v) : v * v;
    }
    const T norm = first ? sum : std::sqrt(sum);
    for (int64_t k = 0; k < e.classes; ++k) {
      y[at + k * e.inner] = norm == T{0} ? T{0} : x[at + k * e.inner] / norm;
    }
  });
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  normalize(extent(y.desc.shape, c.attributes), c.attributes.i("p", 2) == 1,
            c.inputs[0].values.data(), y.values.data());
  return {y};
}

OFSDP_MULTIARCH void divide_row(const BinaryRow<float>& row) {
  binary_row(row, [](float x, float norm) { return norm == 0.0f ? 0.0f : x / norm; });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const SoftmaxParams e = extent(p.in(0).shape, p.attributes);
  const bool first = p.attributes.i("p", 2) == 1;
  const Shape x{e.outer, e.classes, e.inner};
  const Reduction norms(x, {false, true, false},
                        first ? ReduceKind::kSumAbs : ReduceKind::kSumSquares);
  const TensorDesc all{DType::kFloat32, x}, kept{DType::kFloat32, {e.outer, 1, e.inner}};
  return make_kernel(
      [=, loop = binary_loop({{}, {all, kept}, {all}, {}})](const KernelArgs& a) {
        auto* norm = reinterpret_cast<float*>(a.workspace);
        norms.run(a.in<float>(0), norm);
        for (int64_t i = 0; !first && i < e.outer * e.inner; ++i) norm[i] = std::sqrt(norm[i]);
        run_binary<float, float, divide_row>(loop, a.in<float>(0), norm, a.out<float>(0));
      },
      kept.bytes());
}

std::unique_ptr<Kernel> create_double(const Problem& p) {
  return make_kernel([e = extent(p.in(0).shape, p.attributes),
                      first = p.attributes.i("p", 2) == 1](const KernelArgs& a) {
    normalize(e, first, a.in<double>(0), a.out<double>(0));
  });
}

constexpr double kEpsilon = 1e-9;

std::vector<int64_t> axes_of(const Attributes& attributes) {
  return attributes.ints("axes", {0, 2, 3});
}

std::vector<bool> reduced(const Shape& x, const Attributes& attributes) {
  std::vector<bool> list(static_cast<size_t>(x.rank()), false);
  for (int64_t axis : axes_of(attributes)) {
    list[static_cast<size_t>(axis < 0 ? axis + x.rank() : axis)] = true;
  }
  return list;
}

Shape kept_shape(const Shape& x, const Attributes& attributes) {
  Shape kept = x;
  const auto which = reduced(x, attributes);
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (which[static_cast<size_t>(axis)]) kept[axis] = 1;
  }
  return kept;
}

Result<std::vector<TensorDesc>> variance_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(unique_axes(axes_of(c.attributes), c.inputs[0].shape.rank()).status());
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void variance_grad(GradBuilder& b) {
  const Ref x = b.input(0), axes = b.ints(axes_of(b.attributes()));
  const DType dtype = b.desc(x).dtype;
  auto mean = [&](Ref v) { return b.emit1("ReduceMean", {v, axes}); };
  auto op = [&](const char* name, Ref left, Ref right) { return b.emit1(name, {left, right}); };
  const Ref zero = b.scalar(dtype, 0);
  const Ref c = op("Sub", x, mean(x));
  const Ref s = b.emit1("Sqrt", {mean(op("Mul", c, c))});
  const Ref wide = op("Add", s, b.scalar(dtype, kEpsilon));
  const Ref a = op("Div", b.grad_output(0), wide);
  const Ref slope = op("Div", mean(op("Mul", a, c)), op("Mul", s, wide));
  const Ref safe = b.emit1("Where", {op("Equal", s, zero), zero, slope});
  b.set_grad(0, op("Sub", op("Sub", a, mean(a)), op("Mul", c, safe)));
}

std::vector<RefTensor> variance_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const Shape kept = kept_shape(y.desc.shape, c.attributes);
  const auto groups = static_cast<size_t>(kept.numel());
  std::vector<double> mean(groups), square(groups), count(groups);
  auto at = [&](size_t i) {
    return ravel_broadcast(kept, unravel(y.desc.shape, static_cast<int64_t>(i)));
  };
  for (size_t i = 0; i < y.values.size(); ++i) count[at(i)] += 1;
  for (size_t i = 0; i < y.values.size(); ++i) mean[at(i)] += y.values[i] / count[at(i)];
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] -= mean[at(i)];
  for (size_t i = 0; i < y.values.size(); ++i) {
    square[at(i)] += y.values[i] * y.values[i] / count[at(i)];
  }
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] /= std::sqrt(square[at(i)]) + kEpsilon;
  return {y};
}

OFSDP_MULTIARCH void subtract_row(const BinaryRow<float>& row) {
  binary_row(row, [](float a, float b) { return a - b; });
}
OFSDP_MULTIARCH void multiply_row(const BinaryRow<float>& row) {
  binary_row(row, [](float a, float b) { return a * b; });
}

std::unique_ptr<Kernel> variance_create(const Problem& p) {
  const TensorDesc x = p.in(0), kept{DType::kFloat32, kept_shape(x.shape, p.attributes)};
  const auto which = reduced(x.shape, p.attributes);
  const Reduction sum(x.shape, which, ReduceKind::kSum);
  const Reduction squares(x.shape, which, ReduceKind::kSumSquares);
  const int64_t groups = kept.numel();
  const float share =
      x.numel() == 0
          ? 0.0f
          : static_cast<float>(static_cast<double>(groups) / static_cast<double>(x.numel()));
  return make_kernel(
      [=, loop = binary_loop({{}, {x, kept}, {x}, {}})](const KernelArgs& a) {
        auto* stats = reinterpret_cast<float*>(a.workspace);
        sum.run(a.in<float>(0), stats, share);
        run_binary<float, float, subtract_row>(loop, a.in<float>(0), stats, a.out<float>(0));
        squares.run(a.out<float>(0), stats, share);
        for (int64_t i = 0; i < groups; ++i) {
          stats[i] = 1.0f / (std::sqrt(stats[i]) + static_cast<float>(kEpsilon));
        }
        run_binary<float, float, multiply_row>(loop, a.out<float>(0), stats, a.out<float>(0));
      },
      kept.bytes());
}

}  // namespace
}  // namespace axis_normalizations

void add_axis_normalizations(Registry& registry) {
  using namespace axis_normalizations;
  registry.add(make_op("LpNormalization", {infer, grad, reference},
                       plain_float_kernels<create, create_double>("rows"),
                       {.inplace_inputs = {0}}));
  registry.add(make_op("MeanVarianceNormalization",
                       {variance_infer, variance_grad, variance_reference},
                       with_half_floats<accepts_plain_of<float>, variance_create>("passes"),
                       {.first_opset = 9, .inplace_inputs = {0}}));
}

}  // namespace ofsdp::kernels::ops
