// CastLike(x, like): x in the dtype of `like`, as Cast does it. dx is dy cast back, where both
// types are floats. https://onnx.ai/onnx/operators/onnx__CastLike.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/cast.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[1].dtype, c.inputs[0].shape}};
}

SampleCase sample(const char* name, DType from, DType to, Shape shape) {
  return {.name = name,
          .inputs = {{from, std::move(shape)}, {to, {1}}},
          .constant_inputs = {1},
          .check_grad = to == DType::kFloat64};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {sample("float_to_double", f, DType::kFloat64, {3, 5}),
          sample("double_to_int", DType::kFloat64, DType::kInt32, {7}),
          sample("bool_to_float", DType::kBool, f, {7}),
          sample("int_to_bool", DType::kInt64, DType::kBool, {7}),
          sample("empty", f, DType::kFloat64, {0, 2})};
}

}  // namespace

void add_cast_like(Registry& registry) {
  registry.add({.name = "CastLike",
                .min_inputs = 2,
                .first_opset = 15,
                .infer = infer,
                .grad = cast_grad,
                .reference = cast_reference,
                .cpu = {{"loops", accepts_cast, create_cast}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
