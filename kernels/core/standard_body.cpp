#include "kernels/core/standard_body.h"

namespace ofsdp::kernels {
namespace {

// ONNX's TensorProto.DataType.
int64_t onnx_code(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 1;
    case DType::kFloat64:
      return 11;
    case DType::kFloat16:
      return 10;
    case DType::kBFloat16:
      return 16;
    case DType::kInt32:
      return 6;
    case DType::kBool:
      return 9;
    default:
      return 7;
  }
}

}  // namespace

Ref BodyBuilder::ints(const std::vector<int64_t>& values) {
  return constant(
      make_constant<int64_t>(DType::kInt64, Shape({static_cast<int64_t>(values.size())}), values));
}

Ref BodyBuilder::scalar(DType dtype, double value) {
  Constant made{{dtype, Shape{}}, std::vector<std::byte>(dtype_size(dtype))};
  from_doubles({&value, 1}, made.desc, made.bytes.data());
  return constant(std::make_shared<const Constant>(std::move(made)));
}

Ref BodyBuilder::sum(Ref a, const std::vector<int64_t>& axes) {
  return axes.empty() ? a : emit1("ReduceSum", {a, ints(axes)}, {{"keepdims", int64_t{1}}});
}

Ref BodyBuilder::reshape(Ref a, const Shape& shape) {
  if (desc(a).shape == shape) return a;
  return emit1("Reshape", {a, ints(shape.axes())}, {{"allowzero", int64_t{1}}});
}

Ref BodyBuilder::transpose(Ref a, const std::vector<int64_t>& order) {
  return emit1("Transpose", {a}, {{"perm", order}});
}

Ref BodyBuilder::slice(Ref a, int64_t axis, int64_t begin, int64_t end) {
  if (begin == 0 && end == desc(a).shape[static_cast<int>(axis)]) return a;
  return emit1("Slice", {a, ints({begin}), ints({end}), ints({axis})});
}

Ref BodyBuilder::cast(Ref a, DType dtype) {
  if (desc(a).dtype == dtype) return a;
  return emit1("Cast", {a}, {{"to", onnx_code(dtype)}});
}

}  // namespace ofsdp::kernels
