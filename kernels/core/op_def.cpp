#include "kernels/core/op_def.h"

namespace ofsdp::kernels {

Ref GraphBuilder::ints(const std::vector<int64_t>& values) {
  return constant(
      make_constant<int64_t>(DType::kInt64, Shape({static_cast<int64_t>(values.size())}), values));
}

Ref GraphBuilder::scalar(DType dtype, double value) {
  Constant made{{dtype, Shape{}}, std::vector<std::byte>(dtype_size(dtype))};
  from_doubles({&value, 1}, made.desc, made.bytes.data());
  return constant(std::make_shared<const Constant>(std::move(made)));
}

Ref GraphBuilder::sum(Ref a, const std::vector<int64_t>& axes) {
  return axes.empty() ? a : emit1("ReduceSum", {a, ints(axes)}, {{"keepdims", int64_t{1}}});
}

Ref GraphBuilder::reshape(Ref a, const Shape& shape) {
  if (desc(a).shape == shape) return a;
  return emit1("Reshape", {a, ints(shape.axes())}, {{"allowzero", int64_t{1}}});
}

Ref GraphBuilder::transpose(Ref a, const std::vector<int64_t>& order) {
  return emit1("Transpose", {a}, {{"perm", order}});
}

Ref GraphBuilder::slice(Ref a, int64_t axis, int64_t begin, int64_t end) {
  if (begin == 0 && end == desc(a).shape[static_cast<int>(axis)]) return a;
  return emit1("Slice", {a, ints({begin}), ints({end}), ints({axis})});
}

Ref GraphBuilder::cast(Ref a, DType dtype) {
  if (desc(a).dtype == dtype) return a;
  return emit1("Cast", {a}, {{"to", number_of_dtype(dtype)}});
}

Ref GradBuilder::sum_to(Ref grad, Ref target) {
  const Shape& shape = desc(target).shape;
  if (desc(grad).shape == shape) return grad;
  return emit1("ofsdp.SumTo", {grad}, {{"shape", shape.axes()}});
}

}  // namespace ofsdp::kernels
