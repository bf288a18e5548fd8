// ReduceLogSum(x, axes): the logarithm of the sum; see reduce_axes.h for the attributes.
// dx = dy / sum(x) = dy e^-y.
// https://onnx.ai/onnx/operators/onnx__ReduceLogSum.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref slope = b.emit1("Exp", {b.emit1("Neg", {b.output(0)})});
  b.set_grad(0, expand_reduced(b, b.emit1("Mul", {b.grad_output(0), slope})));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return finished(reference_fold(c, 0, [](double sum, double x) { return sum + x; }),
                  [](double sum) { return std::log(sum); });
}

float logarithm(float y) { return std::log(y); }

void make_positive(size_t input, std::vector<double>& values) {
  for (double& v : values) v = input == 0 ? std::abs(v) + 0.5 : v;
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples(true);
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16}));
  for (SampleCase& s : list) {
    s.fill = [first = s.fill](size_t input, std::vector<double>& values) {
      if (first) first(input, values);
      make_positive(input, values);
    };
  }
  return list;
}

}  // namespace

void add_reduce_log_sum(Registry& registry) {
  registry.add({.name = "ReduceLogSum",
                .first_opset = 18,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create_reduction<ReduceKind::kSum, logarithm>, LogSumFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
