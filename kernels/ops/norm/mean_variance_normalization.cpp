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
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

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

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(unique_axes(axes_of(c.attributes), c.inputs[0].shape.rank()).status());
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void grad(GradBuilder& b) {
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

std::vector<RefTensor> reference(const ReferenceContext& c) {
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

std::unique_ptr<Kernel> create(const Problem& p) {
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
        return ok_status();
      },
      kept.bytes());
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {{.name = "image", .inputs = {{f, {2, 3, 4, 5}}}},
          {.name = "rows",
           .attributes = {{"axes", std::vector<int64_t>{-1}}},
           .inputs = {{f, {4, 37}}}},
          {.name = "empty", .inputs = {{f, {0, 3, 2, 2}}}},
          {.name = "float16",
           .inputs = {{DType::kFloat16, {2, 3, 4, 5}}},
           .check_grad = false,
           .tolerance = 2e-3}};
}

}  // namespace

void add_mean_variance_normalization(Registry& registry) {
  registry.add({.name = "MeanVarianceNormalization",
                .first_opset = 9,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"passes", accepts_plain_of<float>, create},
                        in_float32<accepts_plain_of<float>, create>()},
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
