#include "kernels/core/op_def.h"

namespace ofsdp::kernels {

Ref GradBuilder::ints(const std::vector<int64_t>& values) {
  return constant(
      make_constant<int64_t>(DType::kInt64, Shape({static_cast<int64_t>(values.size())}), values));
}

Ref GradBuilder::scalar(DType dtype, double value) {
  Constant made{{dtype, Shape{}}, std::vector<std::byte>(dtype_size(dtype))};
  from_doubles({&value, 1}, made.desc, made.bytes.data());
  return constant(std::make_shared<const Constant>(std::move(made)));
}

Ref GradBuilder::sum_to(Ref grad, Ref target) {
  const Shape& shape = desc(target).shape;
  if (desc(grad).shape == shape) return grad;
  return emit1("ofsdp.SumTo", {grad}, {{"shape", shape.axes()}});
}

}  // namespace ofsdp::kernels
