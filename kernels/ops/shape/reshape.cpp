// Reshape(data, shape): the same elements in another shape; a view.
// In `shape`, -1 is what is left over, and 0 copies the axis of data unless allowzero is 1.
// dx = dy in the shape of data.
// https://onnx.ai/onnx/operators/onnx__Reshape.html
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// Replaces the one -1 in `axes` by what makes the number of elements `numel`.
Status fill_free_axis(std::vector<int64_t>& axes, int64_t numel) {
  int64_t* free_axis = nullptr;
  int64_t known = 1;
  for (int64_t& axis : axes) {
    if (axis != -1) {
      known *= axis;
      continue;
    }
    if (free_axis != nullptr) return input_error("shape {} has -1 twice", Shape(axes).text());
    free_axis = &axis;
  }
  // With an axis of 0 any value would do; 0 elements then leave 0, as PyTorch's batch of 0 expects.
  if (free_axis != nullptr) *free_axis = known == 0 ? 0 : numel / known;
  return ok_status();
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& data = c.inputs[0];
  OFSDP_ASSIGN_OR_RETURN(std::vector<int64_t> axes, known_ints(c, 1, "shape"));
  const bool copy_zeros = c.attributes.i("allowzero", 0) == 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != 0 || !copy_zeros) continue;
    if (static_cast<int>(i) >= data.shape.rank()) {
      return input_error("shape has 0 at axis {}, the data has {} axes", i, data.shape.rank());
    }
    axes[i] = data.shape[static_cast<int>(i)];
  }
  const Shape asked(axes);
  OFSDP_RETURN_IF_ERROR(fill_free_axis(axes, data.numel()));
  OFSDP_ASSIGN_OR_RETURN(const int64_t numel, checked_numel(axes));
  if (numel != data.numel()) {
    return input_error("data of shape {} ({} elements) cannot take the shape {}", data.shape.text(),
                       data.numel(), asked.text());
  }
  return std::vector{TensorDesc{data.dtype, Shape(axes)}};
}

SampleCase sample(const char* name, Shape from, std::vector<double> to, int64_t allowzero = 0) {
  const auto count = static_cast<int64_t>(to.size());
  return {.name = name,
          .attributes = {{"allowzero", allowzero}},
          .inputs = {{DType::kFloat32, std::move(from)}, {DType::kInt64, {count}}},
          .fill = fill_with(1, std::move(to)),
          .constant_inputs = {1}};
}

std::vector<SampleCase> samples() {
  return {sample("flat", {2, 3, 4}, {2, 12}), sample("rest", {2, 3, 4}, {4, -1}),
          sample("copy", {2, 3, 4}, {0, 2, -1}), sample("empty", {0, 3}, {0, -1}),
          sample("allowzero", {0, 3}, {3, 0}, 1)};
}

}  // namespace

void add_reshape(Registry& registry) {
  registry.add({.name = "Reshape",
                .min_inputs = 2,
                .first_opset = 5,
                .infer = infer,
                .grad = grad_of_view,
                .reference = reference_of_view,
                .samples = samples,
                .view = true,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
