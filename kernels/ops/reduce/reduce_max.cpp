// ReduceMax(x, axes): the largest element; see reduce_axes.h for the attributes; a NaN wins. For
// bool it is or. dy is shared equally among the elements that are equal to y, as PyTorch's amax
// does. https://onnx.ai/onnx/operators/onnx__ReduceMax.html

#include "kernels/ops/operators.h"
#include "kernels/ops/reduce/reduce_extreme.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_reduced_extreme(b); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return {reference_of_extreme(c, true)};
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = reduce_samples(true);
  append(list, reduce_samples_of({DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt64,
                                  DType::kInt32, DType::kInt8, DType::kUInt8, DType::kBool}));
  return list;
}

}  // namespace

void add_reduce_max(Registry& registry) {
  registry.add({.name = "ReduceMax",
                .first_opset = 20,
                .infer = infer_reduce,
                .grad = grad,
                .reference = reference,
                .cpu = extreme_kernels<create_reduction<ReduceKind::kMax>, MaxFold>(),
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
