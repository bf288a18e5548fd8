// ReduceLogSumExp(x, axes): y = ln sum e^x; see reduce_axes.h for the attributes. Computed as
// max + ln sum e^(x - max). dx = dy e^(x - y).
// https://onnx.ai/onnx/operators/onnx__ReduceLogSumExp.html
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref log = b.emit1("Sub", {b.input(0), keep_reduced(b, b.output(0))});
  const Ref share = b.emit1("Exp", {log});
  b.set_grad(0, b.emit1("Mul", {share, keep_reduced(b, b.grad_output(0))}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor max =
      reference_fold(c, -INFINITY, [](double y, double x) { return std::max(y, x); });
  RefTensor y{max.desc, std::vector<double>(max.values.size())};
  reference_reduce(c, [&](size_t x, size_t at) {
    y.values[at] += std::exp(c.inputs[0].values[x] - max.values[at]);
  });
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] = max.values[i] + std::log(y.values[i]);
  return {y};
}

// An infinite maximum is not subtracted: infinity - infinity has no value.
OFSDP_MULTIARCH void exp_row(const BinaryRow<float>& row) {
  binary_row(row, [](float x, float max) {
    return vector_exp(x - (__builtin_fabsf(max) > 3.4e38f ? 0.0f : max));
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const auto reduced = reduced_axes(p);
  Shape kept = p.in(0).shape;
  for (int axis = 0; axis < kept.rank(); ++axis) {
    if (reduced[static_cast<size_t>(axis)]) kept[axis] = 1;
  }
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
        const TensorView views[] = {a.inputs[0], {a.workspace, {}}};
        const TensorView target[] = {{a.workspace + maxima, {}}};
        run_binary<float, float, exp_row>(loop, {views, target, nullptr, nullptr});
        sum.run(terms, a.out<float>(0));
        float* y = a.out<float>(0);
        for (int64_t i = 0; i < n; ++i) {
          y[i] = std::log(y[i]) + (std::isinf(most[i]) ? 0.0f : most[i]);
        }
        return ok_status();
      },
      maxima + p.in(0).bytes());
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples();
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16}));
  list.push_back({.name = "large", .inputs = {{DType::kFloat32, {3, 40}}}, .check_grad = false});
  list.back().fill = [](size_t, std::vector<double>& values) {
    for (double& v : values) v *= 200;
  };
  return list;
}

}  // namespace

void add_reduce_log_sum_exp(Registry& registry) {
  registry.add({.name = "ReduceLogSumExp",
                .first_opset = 18,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create, LogSumExpFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
