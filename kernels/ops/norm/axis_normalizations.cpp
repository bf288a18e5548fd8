// LpNormalization(x), attributes axis, p (1 or 2): y = x / n with n = sum |x| or sqrt(sum x^2)
// along the axis; 0 where n is 0. With s = sum dy y: dx = (dy - sign(x) s) / n for p = 1,
// (dy - y s) / n for p = 2, and 0 where n is 0.
// https://onnx.ai/onnx/operators/onnx__LpNormalization.html
//
// MeanVarianceNormalization(x), attribute axes (default 0, 2, 3): y = c / (s + 1e-9) with
// c = x - mean, s = sqrt(mean c^2) over the axes.
// With a = dy / (s + 1e-9): dx = a - mean(a) - c mean(a c) / (s (s + 1e-9)), the last 0 where s is.
// https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/softmax_loops.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace axis_normalizations {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const int64_t p = c.attributes.i("p", 2);
  if (p != 1 && p != 2) return input_error("attribute 'p': expected 1 or 2, found {}", p);
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank()).status());
  return std::vector{c.inputs[0]};
}

SoftmaxExtent extent(const Shape& shape, const Attributes& attributes) {
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
void normalize(const SoftmaxExtent& e, bool first, const T* x, T* y) {
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
  const SoftmaxExtent e = extent(p.in(0).shape, p.attributes);
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
