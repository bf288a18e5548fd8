// ReduceL1(x, axes): the sum of |x|; see reduce_axes.h for the attributes. dx = sign(x) dy, 0 at 0.
// https://onnx.ai/onnx/operators/onnx__ReduceL1.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.AbsGrad", {expand_reduced(b, b.grad_output(0)), b.input(0)}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {reference_fold(c, 0, [](double sum, double x) { return sum + std::abs(x); })};
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples(true);
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt64,
                                  DType::kInt32}));
  return list;
}

}  // namespace

void add_reduce_l1(Registry& registry) {
  registry.add({.name = "ReduceL1",
                .first_opset = 18,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create_reduction<ReduceKind::kSumAbs>, SumAbsFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
