// ReduceSum(x, axes): the sum over the axes; see reduce_axes.h for the attributes. dx = dy
// stretched over what was summed. Whole numbers wrap.
// https://onnx.ai/onnx/operators/onnx__ReduceSum.html
#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, expand_reduced(b, b.grad_output(0))); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {reference_fold(c, 0, [](double sum, double x) { return sum + x; })};
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples();
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt64,
                                  DType::kInt32, DType::kUInt32, DType::kUInt64}));
  return list;
}

}  // namespace

void add_reduce_sum(Registry& registry) {
  registry.add({.name = "ReduceSum",
                .first_opset = 13,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = reduce_kernels<create_reduction<ReduceKind::kSum>, SumFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
