#include "kernels/ops/indexing/gather_scatter.h"

#include <algorithm>

#include "kernels/cpu/indexed.h"

namespace ofsdp::kernels::ops {
namespace {

// The backward nodes of one scatter.
class ScatterGrad {
 public:
  ScatterGrad(GradBuilder& b, const std::string& scatter, const std::string& gather,
              const Attributes& carried)
      : b_(b), scatter_(scatter), gather_(gather), carried_(carried), dy_(b.grad_output(0)) {}

  void none() {
    if (b_.needs_grad(0)) b_.set_grad(0, scatter(dy_, zeros(b_, b_.desc(b_.input(2))), "none"));
    if (b_.needs_grad(2)) b_.set_grad(2, gather(dy_));
  }

  void add() {
    if (b_.needs_grad(0)) b_.set_grad(0, dy_);
    if (b_.needs_grad(2)) b_.set_grad(2, gather(dy_));
  }

  void mul() {
    if (b_.needs_grad(0)) b_.set_grad(0, scatter(dy_, b_.input(2), "mul"));
    if (b_.needs_grad(2)) b_.set_grad(2, other_factors());
  }

  void extreme() {
    const Ref y = b_.output(0);
    const Ref from_data = b_.emit1("Equal", {b_.input(0), y});
    const Ref from_updates = b_.emit1("Equal", {b_.input(2), gather(y)});
    const Ref ties = scatter(as_float(from_data), as_float(from_updates), "add");
    const Ref share = b_.div(dy_, ties);
    if (b_.needs_grad(0)) b_.set_grad(0, where(from_data, share));
    if (b_.needs_grad(2)) b_.set_grad(2, where(from_updates, gather(share)));
  }

 private:
  // dy y / update; where the update is 0, dy times the product of what is not, if it is the only 0.
  Ref other_factors() {
    const Ref updates = b_.input(2);
    const Ref zero = b_.like(dy_, 0), one = b_.like(dy_, 1);
    const Ref is_zero = b_.emit1("Equal", {updates, zero});
    const Ref safe = b_.where(is_zero, one, updates);
    const Ref usual = b_.div(gather(b_.mul(dy_, b_.output(0))), safe);
    const Ref count = gather(scatter(zeros(b_, b_.desc(b_.input(0))), as_float(is_zero), "add"));
    const Ref rest = gather(b_.mul(dy_, scatter(b_.input(0), safe, "mul")));
    const Ref alone = where(b_.emit1("Equal", {count, one}), rest);
    return b_.where(is_zero, alone, usual);
  }

  Ref scatter(Ref data, Ref updates, const char* reduction) {
    Attributes attributes = carried_;
    attributes.set("reduction", std::string(reduction));
    return b_.emit1(scatter_, {data, b_.input(1), updates}, attributes);
  }
  Ref gather(Ref data) { return b_.emit1(gather_, {data, b_.input(1)}, carried_); }
  Ref as_float(Ref condition) { return b_.cast(condition, b_.desc(dy_).dtype); }
  Ref where(Ref condition, Ref value) { return b_.where(condition, value, b_.like(value, 0)); }

  GradBuilder& b_;
  const std::string& scatter_;
  const std::string& gather_;
  Attributes carried_;
  Ref dy_;
};

}  // namespace

Ref zeros(GradBuilder& b, const TensorDesc& desc) {
  const std::vector<std::byte> nothing(dtype_size(desc.dtype));
  const ConstantPtr zero = std::make_shared<const Constant>(Constant{{desc.dtype, {1}}, nothing});
  return b.emit1("ConstantOfShape", {b.ints(desc.shape.axes())}, {{"value", zero}});
}

Status check_element_indices(const InferContext& c) {
  const TensorDesc& data = c.inputs[0];
  const TensorDesc& indices = c.inputs[1];
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", 0), data.shape.rank()));
  const bool integers = indices.dtype == DType::kInt64 || indices.dtype == DType::kInt32;
  bool fits = indices.shape.rank() == data.shape.rank();
  for (int i = 0; fits && i < data.shape.rank(); ++i) {
    fits = i == axis || indices.shape[i] <= data.shape[i];
  }
  if (!integers || !fits) {
    return input_error("expected int64 or int32 indices inside of {} but for axis {}, found {}",
                       data.shape.text(), axis, indices.text());
  }
  return ok_status();
}

Acceptance accepts_index_type(const Problem& p) {
  return accept_if(p.all_plain() && is_index(p.in(1).dtype),
                   "not plain, or indices of another type");
}

size_t element_place(const Shape& data, const RefTensor& indices, int64_t i, int64_t axis) {
  auto index = unravel(indices.desc.shape, i);
  const auto at = static_cast<size_t>(axis < 0 ? axis + data.rank() : axis);
  index[at] = static_cast<int64_t>(indices[i]);
  if (index[at] < 0) index[at] += data[static_cast<int>(at)];
  return ravel(data, index);
}

Result<Shape> tuple_slices(const InferContext& c, int64_t batch_axes) {
  const Shape& data = c.inputs[0].shape;
  const Shape& indices = c.inputs[1].shape;
  const bool ranks = c.inputs[1].dtype == DType::kInt64 && indices.rank() >= 1 && batch_axes >= 0 &&
                     batch_axes < indices.rank() && batch_axes <= data.rank();
  const int64_t members = ranks ? indices[indices.rank() - 1] : 0;
  bool fits = ranks && members + batch_axes <= data.rank();
  for (int i = 0; fits && i < batch_axes; ++i) fits = data[i] == indices[i];
  if (!fits) {
    return input_error(
        "expected int64 indices [..., m] for m axes of {} behind {} batch axes, found {}",
        data.text(), batch_axes, c.inputs[1].text());
  }
  std::vector<int64_t> axes(indices.axes().begin(), indices.axes().end() - 1);
  axes.insert(axes.end(), data.axes().begin() + batch_axes + members, data.axes().end());
  return Shape(axes);
}

void for_tuple_elements(const Shape& data, const RefTensor& indices, int batch_axes,
                        const std::function<void(size_t, size_t)>& f) {
  const Shape& shape = indices.desc.shape;
  const auto members = shape[shape.rank() - 1];
  const int64_t slice = data.numel(batch_axes + static_cast<int>(members), data.rank());
  size_t to = 0;
  for (int64_t t = 0; t < shape.numel(0, shape.rank() - 1); ++t) {
    const auto index = unravel(Shape(std::vector(shape.axes().begin(), shape.axes().end() - 1)), t);
    int64_t at = 0;
    for (int axis = 0; axis < batch_axes; ++axis) {
      at = at * data[axis] + index[static_cast<size_t>(axis)];
    }
    for (int64_t i = 0; i < members; ++i) {
      const int64_t size = data[batch_axes + static_cast<int>(i)];
      const auto value = static_cast<int64_t>(indices[t * members + i]);
      at = at * size + (value < 0 ? value + size : value);
    }
    for (int64_t k = 0; k < slice; ++k) f(static_cast<size_t>(at * slice + k), to++);
  }
}

Result<ScatterKind> reduction_of(const Attributes& attributes) {
  const std::string name = attributes.s("reduction", "none");
  const auto kind = scatter_kind(name);
  if (!kind) {
    return input_error("attribute 'reduction': expected none, add, mul, max or min, found '{}'",
                       name);
  }
  return *kind;
}

double reduce_doubles(ScatterKind kind, double a, double b) {
  switch (kind) {
    case ScatterKind::kAdd:
      return a + b;
    case ScatterKind::kMul:
      return a * b;
    case ScatterKind::kMax:
      return std::max(a, b);
    case ScatterKind::kMin:
      return std::min(a, b);
    default:
      return b;
  }
}

void scatter_grad(GradBuilder& b, const std::string& scatter, const std::string& gather,
                  const Attributes& carried) {
  ScatterGrad grad(b, scatter, gather, carried);
  switch (*reduction_of(b.attributes())) {
    case ScatterKind::kAdd:
      return grad.add();
    case ScatterKind::kMul:
      return grad.mul();
    case ScatterKind::kMax:
    case ScatterKind::kMin:
      return grad.extreme();
    default:
      return grad.none();
  }
}

}  // namespace ofsdp::kernels::ops
