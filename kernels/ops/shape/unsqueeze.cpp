// Unsqueeze(x, axes): axes of size 1 put in; `axes` counts in the result; a view.
// dx = dy in the shape of x.
// https://onnx.ai/onnx/operators/onnx__Unsqueeze.html
#include <algorithm>

#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  OFSDP_ASSIGN_OR_RETURN(const auto axes, known_ints(c, 1, "axes"));
  const int rank = x.shape.rank() + static_cast<int>(axes.size());
  OFSDP_ASSIGN_OR_RETURN(const auto put, unique_axes(axes, rank));
  std::vector<int64_t> all;
  int from = 0;
  for (int axis = 0; axis < rank; ++axis) {
    const bool fresh = std::ranges::find(put, axis) != put.end();
    all.push_back(fresh ? 1 : x.shape[from++]);
  }
  return std::vector{TensorDesc{x.dtype, Shape(all)}};
}

std::vector<SampleCase> samples() {
  return {{.name = "two",
           .inputs = {{DType::kFloat32, {3, 4}}, {DType::kInt64, {2}}},
           .fill = fill_with(1, {0, -1}),
           .constant_inputs = {1}},
          {.name = "empty",
           .inputs = {{DType::kFloat32, {0, 4}}, {DType::kInt64, {1}}},
           .fill = fill_with(1, {1}),
           .constant_inputs = {1}}};
}

}  // namespace

void add_unsqueeze(Registry& registry) {
  registry.add({.name = "Unsqueeze",
                .min_inputs = 2,
                .first_opset = 13,
                .infer = infer,
                .grad = grad_of_view,
                .reference = reference_of_view,
                .samples = samples,
                .view = true,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
