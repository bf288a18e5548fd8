#include "kernels/ops/support.h"

#include <set>

#include "kernels/core/element_types.h"
#include "kernels/cpu/products.h"

namespace ofsdp::kernels::ops {

OpDef make_op(std::string name, OpFunctions functions, std::vector<Implementation> cpu,
              OpDef rest) {
  rest.name = std::move(name);
  rest.infer = std::move(functions.infer);
  rest.grad = std::move(functions.grad);
  rest.reference = functions.reference;
  rest.cpu = std::move(cpu);
  return rest;
}

OpDef channels_last(std::vector<int> inputs, std::vector<int> outputs, OpDef rest) {
  rest.layout = LayoutRule::kChannelsLast;
  rest.channels_last_inputs = std::move(inputs);
  rest.channels_last_outputs = std::move(outputs);
  return rest;
}

Result<std::vector<int64_t>> known_ints(const InferContext& c, size_t i, const char* name) {
  const Constant* constant = c.constant(i);
  if (constant == nullptr) {
    return input_error("input '{}' must be known before the run, found a computed value", name);
  }
  auto values = int_values(*constant);
  if (!values.ok()) return std::move(values).status().with_prefix(format_text("input '{}'", name));
  return values;
}

Result<std::vector<int>> unique_axes(const std::vector<int64_t>& axes, int rank) {
  std::set<int> found;
  for (int64_t axis : axes) {
    OFSDP_ASSIGN_OR_RETURN(const int normal, normalize_axis(axis, rank));
    if (!found.insert(normal).second) return input_error("axis {} is named twice", axis);
  }
  return std::vector<int>(found.begin(), found.end());
}

Result<TensorDesc> infer_broadcast(const InferContext& c) {
  const TensorDesc& a = c.inputs[0];
  const TensorDesc& b = c.inputs[1];
  if (a.dtype != b.dtype) {
    return input_error("expected two inputs of one type, found {} and {}", a.text(), b.text());
  }
  OFSDP_ASSIGN_OR_RETURN(Shape shape, broadcast(a.shape, b.shape));
  const Layout layout = a.shape == shape ? a.layout : b.shape == shape ? b.layout : Layout::kPlain;
  return TensorDesc{a.dtype, std::move(shape), layout};
}

Result<std::vector<TensorDesc>> infer_same(const InferContext& c) {
  return std::vector{c.inputs[0]};
}

Result<std::vector<TensorDesc>> infer_binary(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  return std::vector{std::move(desc)};
}

InferFn infer_shape_of(const char* name) {
  return [name](const InferContext& c) -> Result<std::vector<TensorDesc>> {
    return std::vector{TensorDesc{c.inputs[0].dtype, Shape(c.attributes.ints(name))}};
  };
}

InferFn infer_like_inputs(std::vector<size_t> inputs) {
  return [inputs](const InferContext& c) -> Result<std::vector<TensorDesc>> {
    std::vector<TensorDesc> outputs;
    for (size_t i : inputs) outputs.push_back(c.inputs[i]);
    return outputs;
  };
}

InferContext context_of(const GradBuilder& b) {
  InferContext c{b.attributes(), {}, {}, {}};
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    const Ref in = b.input(i);
    c.inputs.push_back(in ? b.desc(in) : TensorDesc{});
    c.constants.push_back(in ? b.constant_value(in) : nullptr);
  }
  return c;
}

InferContext context_of(const Problem& p) { return {p.attributes, p.inputs, p.constants, {}}; }

Acceptance accepts_plain(const Problem& p) { return accept_if(p.all_plain(), "not plain"); }

Acceptance accept_with_blas(const Acceptance& rest) {
  return rest ? accept_if(blas_is_present(), "libofsdp_openblas.so is missing") : rest;
}

Acceptance accepts_plain_with_blas(const Problem& p) { return accept_with_blas(accepts_plain(p)); }

Acceptance accepts_plain_numbers(const Problem& p) {
  return accept_if(p.all_plain() && is_number(p.in(0).dtype), "not plain, or a 16-bit float");
}

Acceptance accepts_always(const Problem&) { return accept_if(true, ""); }

void grad_of_copy(GradBuilder& b) { b.set_grad(0, b.grad_output(0)); }

void no_grad(GradBuilder&) {}

Ref reshape_like(GradBuilder& b, Ref value, Ref target) {
  return b.reshape(value, b.desc(target).shape);
}

void grad_of_view(GradBuilder& b) { b.set_grad(0, reshape_like(b, b.grad_output(0), b.input(0))); }

RefTensor zeros(const TensorDesc& desc) {
  return {desc, std::vector<double>(static_cast<size_t>(desc.numel()))};
}

const RefTensor* given(const std::vector<RefTensor>& inputs, size_t i) {
  return i < inputs.size() && inputs[i].desc.present() ? &inputs[i] : nullptr;
}

std::vector<TensorDesc> descs_of(const std::vector<RefTensor>& tensors) {
  std::vector<TensorDesc> made;
  for (const RefTensor& tensor : tensors) made.push_back(tensor.desc);
  return made;
}

std::vector<int64_t> unravel(const Shape& shape, int64_t flat) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[static_cast<size_t>(axis)] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

size_t ravel_broadcast(const Shape& shape, const std::vector<int64_t>& index) {
  const size_t missing = index.size() - static_cast<size_t>(shape.rank());
  int64_t flat = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t at = shape[axis] == 1 ? 0 : index[missing + static_cast<size_t>(axis)];
    flat = flat * shape[axis] + at;
  }
  return static_cast<size_t>(flat);
}

size_t ravel(const Shape& shape, const std::vector<int64_t>& index) {
  int64_t flat = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    flat = flat * shape[axis] + index[static_cast<size_t>(axis)];
  }
  return static_cast<size_t>(flat);
}

std::vector<RefTensor> reference_of_view(const ReferenceContext& c) {
  return {{c.output_descs[0], c.inputs[0].values}};
}

Ref scatter_along(BodyBuilder& b, Ref dy, Ref indices, int axis, int64_t size) {
  const Shape& from = b.desc(dy).shape;
  const int put = b.desc(indices).shape.rank();
  // The index axes move to the front and become one axis.
  std::vector<int64_t> order, rest;
  for (int i = 0; i < put; ++i) order.push_back(axis + i);
  for (int i = 0; i < from.rank(); ++i) {
    if (i < axis || i >= axis + put) order.push_back(i);
    if (i < axis || i >= axis + put) rest.push_back(from[i]);
  }
  std::vector<int64_t> rows = rest, whole = rest;
  const int64_t count = b.desc(indices).shape.numel();
  rows.insert(rows.begin(), count);
  whole.insert(whole.begin(), size);
  const Ref updates = b.reshape(b.transpose(dy, order), Shape(rows));
  const Ref places = b.reshape(b.cast(indices, DType::kInt64), Shape{count, 1});
  const Ref zeros = b.emit1("Expand", {b.like(dy, 0), b.ints(whole)});
  const Ref sum =
      b.emit1("ScatterND", {zeros, places, updates}, {{"reduction", std::string("add")}});
  std::vector<int64_t> back(whole.size());
  for (size_t i = 0; i < back.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    back[i] = at < axis ? at + 1 : at == axis ? 0 : at;
  }
  return b.transpose(sum, back);
}

LabelTerms label_terms(BodyBuilder& b, Ref labels, Ref weights, const TensorDesc& scores) {
  const DType dtype = scores.dtype;
  const Shape& shape = scores.shape;
  Shape one_class = shape;
  one_class[1] = 1;
  labels = b.cast(labels, DType::kInt64);
  Ref kept, safe = labels;
  if (b.attributes().has("ignore_index")) {
    const Ref ignored =
        b.scalar(DType::kInt64, static_cast<double>(b.attributes().i("ignore_index", 0)));
    const Ref dropped = b.emit1("Equal", {labels, ignored});
    safe = b.where(dropped, b.scalar(DType::kInt64, 0), labels);
    kept = b.where(dropped, b.scalar(dtype, 0), b.scalar(dtype, 1));
  } else {
    kept = b.emit1("Expand", {b.scalar(dtype, 1), b.ints(b.desc(labels).shape.axes())});
  }
  const std::vector<double> zero_one{0, 1};
  Constant values{{dtype, Shape{2}}, std::vector<std::byte>(2 * dtype_size(dtype))};
  from_doubles(zero_one, values.desc, values.bytes.data());
  const Ref classes = b.scalar(DType::kInt64, static_cast<double>(shape[1]));
  const Ref one_hot =
      b.emit1("OneHot", {safe, classes, b.constant(std::make_shared<const Constant>(values))},
              {{"axis", int64_t{1}}});
  Ref weight = weights ? b.mul(kept, b.emit1("Gather", {weights, safe})) : kept;
  return {one_hot, b.reshape(kept, one_class), b.reshape(weight, one_class)};
}

Ref class_weights(BodyBuilder& b, Ref weights, const Shape& scores) {
  std::vector<int64_t> axes(static_cast<size_t>(scores.rank()), 1);
  axes[1] = scores[1];
  return b.reshape(weights, Shape(axes));
}

Ref label_scale(BodyBuilder& b, const LabelTerms& terms, Ref diff_loss) {
  const std::string reduction = b.attributes().s("reduction", "mean");
  const Shape& each = b.desc(terms.kept).shape;
  if (reduction == "none") return b.reshape(diff_loss, each);
  if (reduction == "sum") return diff_loss;
  const DType dtype = b.desc(terms.weight).dtype;
  const Ref total = b.emit1("ReduceSum", {terms.weight}, {{"keepdims", int64_t{0}}});
  const Ref none = b.emit1("Equal", {total, b.scalar(dtype, 0)});
  const Ref safe = b.where(none, b.scalar(dtype, 1), total);
  return b.where(none, b.scalar(dtype, 0), b.div(diff_loss, safe));
}

}  // namespace ofsdp::kernels::ops
