// ReduceSumSquare(x, axes): the sum of x^2; see reduce_axes.h for the attributes. dx = 2 x dy.
// https://onnx.ai/onnx/operators/onnx__ReduceSumSquare.html
#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref two = b.scalar(b.desc(b.input(0)).dtype, 2);
  const Ref dy = keep_reduced(b, b.emit1("Mul", {b.grad_output(0), two}));
  b.set_grad(0, b.emit1("Mul", {b.input(0), dy}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {reference_fold(c, 0, [](double sum, double x) { return sum + x * x; })};
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples(true);
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt64,
                                  DType::kInt32}));
  return list;
}

}  // namespace

void add_reduce_sum_square(Registry& registry) {
  registry.add({.name = "ReduceSumSquare",
                .first_opset = 18,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create_reduction<ReduceKind::kSumSquares>, SumSquaresFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
