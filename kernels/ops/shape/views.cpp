// Views: x's elements and bytes in another shape. dx = dy in x's shape.
// https://onnx.ai/onnx/operators/onnx__NAME.html
//
//   Reshape(data, shape)   in `shape`, -1 is the size that is left, and 0 copies data's axis unless
//                          allowzero is 1
//   Flatten(x), axis       [a*b, c*d], cut before `axis` (1; may be the rank itself)
//   Squeeze(x, axes)       removes the named axes, which must have size 1 (if none is named, all
//                          such axes)
//   Unsqueeze(x, axes)     inserts axes with size 1; `axes` counts in the result
//   Identity(x)
//   ofsdp.CollapseLeading  [a, b, ..., C] -> [a*b*..., C], ofsdp.CollapseAll: any shape ->
//                          [elements]. They need no constant shape, so they hold for every batch
//                          size; losses use them to flatten predictions and labels.
#include <algorithm>

#include "kernels/core/op_def.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace views {

// --- reshape ---

// Replaces the single -1 in `axes` so that there are `numel` elements.
Status fill_free_axis(std::vector<int64_t>& axes, int64_t numel) {
  int64_t* free_axis = nullptr;
  std::vector<int64_t> others;
  for (int64_t& axis : axes) {
    if (axis != -1) {
      others.push_back(axis);
      continue;
    }
    if (free_axis != nullptr) return input_error("shape {} has -1 twice", Shape(axes).text());
    free_axis = &axis;
  }
  OFSDP_ASSIGN_OR_RETURN(const int64_t known, checked_numel(others));
  // If an axis is 0, any value would do; 0 elements then leave 0, as PyTorch's batch of 0 expects.
  if (free_axis != nullptr) *free_axis = known == 0 ? 0 : numel / known;
  return ok_status();
}

Result<std::vector<TensorDesc>> reshape_infer(const InferContext& c) {
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

// --- flatten ---

Result<std::vector<TensorDesc>> flatten_infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const int rank = x.shape.rank();
  const int64_t axis = c.attributes.i("axis", 1);
  if (axis < -rank || axis > rank) {
    return input_error("axis {} is outside -{}..{}", axis, rank, rank);
  }
  const int cut = static_cast<int>(axis < 0 ? axis + rank : axis);
  return std::vector{TensorDesc{x.dtype, {x.shape.numel(0, cut), x.shape.numel(cut, rank)}}};
}

// --- squeeze ---

Result<std::vector<TensorDesc>> squeeze_infer(const InferContext& c) {
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

// --- unsqueeze ---

Result<std::vector<TensorDesc>> unsqueeze_infer(const InferContext& c) {
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

// --- collapse ---

Result<std::vector<TensorDesc>> infer_leading(const InferContext& c) {
  const Shape& shape = c.inputs[0].shape;
  if (shape.rank() == 0) return input_error("expected at least one axis, found a scalar");
  const int last = shape.rank() - 1;
  return std::vector{TensorDesc{c.inputs[0].dtype, {shape.numel(0, last), shape[last]}}};
}

Result<std::vector<TensorDesc>> infer_all(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[0].dtype, {c.inputs[0].numel()}}};
}

void collapse_body(BodyBuilder& b) {
  b.set_output(0, b.reshape(b.input(0), b.output_desc(0).shape));
}

// Returns `op` with the members that all views share.
OpDef view(OpDef op) {
  if (op.grad == nullptr) op.grad = grad_of_view;
  op.reference = reference_of_view;
  op.view = true;
  return op;
}

OpDef collapse(const char* name, InferFn infer) {
  return view(
      {.domain = kOwnDomain, .name = name, .infer = std::move(infer), .body = collapse_body});
}

}  // namespace views

void add_views(Registry& registry) {
  using namespace views;
  registry.add(view({.name = "Reshape",
                     .min_inputs = 2,
                     .first_opset = 5,
                     .infer = reshape_infer,
                     .narrow_types = true,
                     .constant_inputs = {1}}));
  registry.add(view({.name = "Flatten", .infer = flatten_infer, .narrow_types = true}));
  registry.add(view({.name = "Squeeze",
                     .first_opset = 13,
                     .infer = squeeze_infer,
                     .narrow_types = true,
                     .constant_inputs = {1}}));
  registry.add(view({.name = "Unsqueeze",
                     .min_inputs = 2,
                     .first_opset = 13,
                     .infer = unsqueeze_infer,
                     .narrow_types = true,
                     .constant_inputs = {1}}));
  registry.add(view({.name = "Identity",
                     .infer = infer_same,
                     .grad = grad_of_copy,
                     .narrow_types = true,
                     .layout = LayoutRule::kElementwise}));
  registry.add(collapse("CollapseLeading", infer_leading));
  registry.add(collapse("CollapseAll", infer_all));
}

}  // namespace ofsdp::kernels::ops
