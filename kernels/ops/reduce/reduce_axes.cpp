#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {

Result<std::vector<TensorDesc>> infer_reduce(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  std::vector<int64_t> axes;
  if (c.has(1)) {
    OFSDP_ASSIGN_OR_RETURN(axes, known_ints(c, 1, "axes"));
  }
  OFSDP_RETURN_IF_ERROR(unique_axes(axes, x.shape.rank()).status());
  const std::vector<bool> reduced = reduced_axes(x.shape, axes, c.attributes);
  std::vector<int64_t> kept;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    if (!reduced[static_cast<size_t>(axis)]) {
      kept.push_back(x.shape[axis]);
    } else if (c.attributes.i("keepdims", 1) != 0) {
      kept.push_back(1);
    }
  }
  return std::vector{TensorDesc{x.dtype, Shape(kept)}};
}

std::vector<bool> reduced_axes(const Shape& shape, const std::vector<int64_t>& axes,
                               const Attributes& attributes) {
  const bool all = axes.empty() && attributes.i("noop_with_empty_axes", 0) == 0;
  std::vector<bool> reduced(static_cast<size_t>(shape.rank()), all);
  for (int64_t axis : axes) {
    reduced[static_cast<size_t>(axis < 0 ? axis + shape.rank() : axis)] = true;
  }
  return reduced;
}

std::vector<bool> reduced_axes(const Problem& p) {
  const Constant* axes = p.constant(1);
  return reduced_axes(p.in(0).shape, axes == nullptr ? std::vector<int64_t>{} : *int_values(*axes),
                      p.attributes);
}

std::vector<bool> reduced_axes(const GradBuilder& b) {
  const bool named = b.num_inputs() > 1 && b.input(1);
  const auto axes = named ? *int_values(*b.constant_value(b.input(1))) : std::vector<int64_t>{};
  return reduced_axes(b.desc(b.input(0)).shape, axes, b.attributes());
}

void reference_reduce(const ReferenceContext& c, const std::function<void(size_t, size_t)>& f) {
  const Shape& shape = c.inputs[0].desc.shape;
  std::vector<int64_t> axes;
  if (c.inputs.size() > 1) axes.assign(c.inputs[1].values.begin(), c.inputs[1].values.end());
  const auto reduced = reduced_axes(shape, axes, c.attributes);
  Shape kept = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (reduced[static_cast<size_t>(axis)]) kept[axis] = 1;
  }
  for (int64_t i = 0; i < shape.numel(); ++i) {
    f(static_cast<size_t>(i), ravel_broadcast(kept, unravel(shape, i)));
  }
}

Ref keep_reduced(GradBuilder& b, Ref value) {
  Shape kept = b.desc(b.input(0)).shape;
  const auto reduced = reduced_axes(b);
  for (int axis = 0; axis < kept.rank(); ++axis) {
    if (reduced[static_cast<size_t>(axis)]) kept[axis] = 1;
  }
  if (b.desc(value).shape == kept) return value;
  return b.emit1("Reshape", {value, b.ints(kept.axes())}, {{"allowzero", int64_t{1}}});
}

Ref expand_reduced(GradBuilder& b, Ref value) {
  return b.emit1("Expand", {keep_reduced(b, value), b.ints(b.desc(b.input(0)).shape.axes())});
}

namespace {

SampleCase sample(const char* name, Shape shape, std::vector<double> axes, int64_t keepdims) {
  const auto count = static_cast<int64_t>(axes.size());
  return {.name = name,
          .attributes = {{"keepdims", keepdims}},
          .inputs = {{DType::kFloat32, std::move(shape)}, {DType::kInt64, {count}}},
          .fill = fill_with(1, std::move(axes)),
          .constant_inputs = {1}};
}

}  // namespace

std::vector<SampleCase> reduce_samples(bool empty_sums) {
  const TensorDesc x{DType::kFloat32, {3, 5, 7}};
  std::vector<SampleCase> list = {
      {.name = "all", .inputs = {x}},
      {.name = "noop", .attributes = {{"noop_with_empty_axes", int64_t{1}}}, .inputs = {x}},
      sample("last", {6, 40}, {-1}, 1),
      sample("first", {6, 140}, {0}, 0),
      sample("spatial", {2, 3, 4, 5}, {2, 3}, 1),
      sample("ends", {2, 3, 4}, {0, -1}, 0),
      sample("middle", {2, 5, 3}, {1}, 1),
      sample("empty_batch", {0, 5}, {1}, 1)};
  if (empty_sums) list.push_back(sample("empty_sum", {0, 5}, {0}, 0));
  return list;
}

std::vector<SampleCase> reduce_samples_of(std::vector<DType> dtypes) {
  std::vector<SampleCase> list;
  for (DType dtype : dtypes) {
    SampleCase made = sample(std::string(dtype_name(dtype)).c_str(), {3, 4, 5}, {1}, 0);
    made.inputs[0].dtype = dtype;
    if (dtype_size(dtype) == 2) made.tolerance = dtype == DType::kFloat16 ? 1e-3 : 8e-3;
    if (dtype == DType::kFloat64) made.tolerance = 1e-13;
    made.check_grad = false;
    list.push_back(std::move(made));
  }
  return list;
}

}  // namespace ofsdp::kernels::ops
