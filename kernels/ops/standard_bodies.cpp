#include "kernels/ops/standard_bodies.h"

namespace ofsdp::kernels::ops {

Ref scatter_along(BodyBuilder& b, Ref dy, Ref indices, int axis, int64_t size) {
  const Shape& from = b.desc(dy).shape;
  const int put = b.desc(indices).shape.rank();
  // The axes of the indices in front, as one.
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
