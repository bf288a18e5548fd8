// Squeeze(x, axes): without the named axes, which must have size 1 (all such axes when none is
// named); a view. dx = dy in the shape of x. https://onnx.ai/onnx/operators/onnx__Squeeze.html
#include <algorithm>

#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  std::vector<int> gone;
  if (c.has(1)) {
    OFSDP_ASSIGN_OR_RETURN(const auto axes, known_ints(c, 1, "axes"));
    OFSDP_ASSIGN_OR_RETURN(gone, unique_axes(axes, x.shape.rank()));
  }
  std::vector<int64_t> left;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    const bool named = std::ranges::find(gone, axis) != gone.end();
    if (named && x.shape[axis] != 1) {
      return input_error("axis {} of {} has size {}, expected 1", axis, x.shape.text(),
                         x.shape[axis]);
    }
    const bool drop = c.has(1) ? named : x.shape[axis] == 1;
    if (!drop) left.push_back(x.shape[axis]);
  }
  return std::vector{TensorDesc{x.dtype, Shape(left)}};
}

std::vector<SampleCase> samples() {
  const TensorDesc x{DType::kFloat32, {3, 1, 4, 1}};
  const TensorDesc axes{DType::kInt64, {1}};
  return {{.name = "all", .inputs = {x}},
          {.name = "last", .inputs = {x, axes}, .fill = fill_with(1, {-1}), .constant_inputs = {1}},
          {.name = "empty",
           .inputs = {{DType::kFloat32, {0, 1}}, axes},
           .fill = fill_with(1, {1}),
           .constant_inputs = {1}}};
}

}  // namespace

void add_squeeze(Registry& registry) {
  registry.add({.name = "Squeeze",
                .first_opset = 13,
                .infer = infer,
                .grad = grad_of_view,
                .reference = reference_of_view,
                .samples = samples,
                .view = true,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
