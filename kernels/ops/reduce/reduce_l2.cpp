// ReduceL2(x, axes): the square root of the sum of x^2; see reduce_axes.h for the attributes.
// dx = x dy / y, and 0 where y is 0.
// https://onnx.ai/onnx/operators/onnx__ReduceL2.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref zero = b.scalar(b.desc(b.output(0)).dtype, 0);
  const Ref slope = b.emit1("Div", {b.grad_output(0), b.output(0)});
  const Ref none = b.emit1("Equal", {b.output(0), zero});
  const Ref factor = keep_reduced(b, b.emit1("Where", {none, zero, slope}));
  b.set_grad(0, b.emit1("Mul", {b.input(0), factor}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor sum = reference_fold(c, 0, [](double y, double x) { return y + x * x; });
  const bool whole = is_integer(sum.desc.dtype);
  return finished(sum, [&](double y) { return whole ? std::floor(std::sqrt(y)) : std::sqrt(y); });
}

float root(float y) { return std::sqrt(y); }

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples(true);
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt64,
                                  DType::kInt32}));
  return list;
}

}  // namespace

void add_reduce_l2(Registry& registry) {
  registry.add({.name = "ReduceL2",
                .first_opset = 18,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create_reduction<ReduceKind::kSumSquares, root>, NormFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
