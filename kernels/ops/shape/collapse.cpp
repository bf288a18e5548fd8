// ofsdp.CollapseLeading: [a, b, ..., C] -> [a*b*..., C]; ofsdp.CollapseAll: any shape ->
// [elements]. Views that need no constant shape, so they hold for every batch size; losses flatten
// predictions and labels with them. dx = dy in the shape of x.
#include "kernels/core/standard_body.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer_leading(const InferContext& c) {
  const Shape& shape = c.inputs[0].shape;
  if (shape.rank() == 0) return input_error("expected at least one axis, found a scalar");
  const int last = shape.rank() - 1;
  return std::vector{TensorDesc{c.inputs[0].dtype, {shape.numel(0, last), shape[last]}}};
}

Result<std::vector<TensorDesc>> infer_all(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[0].dtype, {c.inputs[0].numel()}}};
}

std::vector<SampleCase> samples() {
  return {{.name = "cube", .inputs = {{DType::kFloat32, {2, 3, 4}}}},
          {.name = "vector", .inputs = {{DType::kFloat32, {5}}}},
          {.name = "labels", .inputs = {{DType::kInt64, {2, 3}}}},
          {.name = "empty", .inputs = {{DType::kFloat32, {0, 3, 4}}}}};
}

void collapse_body(BodyBuilder& b) {
  b.set_output(0, b.reshape(b.input(0), b.output_desc(0).shape));
}

OpDef collapse(const char* name, InferFn infer) {
  return {.domain = kOwnDomain,
          .name = name,
          .infer = infer,
          .grad = grad_of_view,
          .body = collapse_body,
          .reference = reference_of_view,
          .samples = samples,
          .view = true};
}

}  // namespace

void add_collapse(Registry& registry) {
  registry.add(collapse("CollapseLeading", infer_leading));
  registry.add(collapse("CollapseAll", infer_all));
}

}  // namespace ofsdp::kernels::ops
