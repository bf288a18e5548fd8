// Flatten(x), attribute axis: [a*b, c*d], cut in front of `axis` (1; may be the rank itself); a
// view. dx = dy in the shape of x. https://onnx.ai/onnx/operators/onnx__Flatten.html
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const int rank = x.shape.rank();
  const int64_t axis = c.attributes.i("axis", 1);
  if (axis < -rank || axis > rank) {
    return input_error("axis {} is outside -{}..{}", axis, rank, rank);
  }
  const int cut = static_cast<int>(axis < 0 ? axis + rank : axis);
  return std::vector{TensorDesc{x.dtype, {x.shape.numel(0, cut), x.shape.numel(cut, rank)}}};
}

std::vector<SampleCase> samples() {
  const TensorDesc x{DType::kFloat32, {2, 3, 4}};
  const TensorDesc empty{DType::kFloat32, {0, 3, 4}};
  return {{.name = "batch", .inputs = {x}},
          {.name = "all", .attributes = {{"axis", int64_t{0}}}, .inputs = {x}},
          {.name = "last", .attributes = {{"axis", int64_t{-1}}}, .inputs = {x}},
          {.name = "rank", .attributes = {{"axis", int64_t{3}}}, .inputs = {x}},
          {.name = "empty", .inputs = {empty}}};
}

}  // namespace

void add_flatten(Registry& registry) {
  registry.add({.name = "Flatten",
                .infer = infer,
                .grad = grad_of_view,
                .reference = reference_of_view,
                .samples = samples,
                .view = true});
}

}  // namespace ofsdp::kernels::ops
