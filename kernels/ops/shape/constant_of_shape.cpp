// ConstantOfShape(shape), attribute value (one element; float32 0 when absent): a tensor full of
// it. No gradient. https://onnx.ai/onnx/operators/onnx__ConstantOfShape.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

ConstantPtr value_of(const Attributes& attributes) {
  const auto value = attributes.get<ConstantPtr>("value", nullptr);
  if (value != nullptr) return value;
  const float zero = 0;
  return make_constant<float>(DType::kFloat32, {1}, {&zero, 1});
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto axes, known_ints(c, 0, "input"));
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  const ConstantPtr value = value_of(c.attributes);
  if (value->desc.numel() != 1) {
    return input_error("attribute 'value': expected one element, found {}", value->desc.text());
  }
  return std::vector{TensorDesc{value->desc.dtype, Shape(axes)}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ConstantPtr value = value_of(c.attributes);
  const double v = to_doubles(value->desc, value->bytes.data())[0];
  return {
      {c.output_descs[0], std::vector<double>(static_cast<size_t>(c.output_descs[0].numel()), v)}};
}

bool accepts(const Problem&) { return true; }

std::unique_ptr<Kernel> create(const Problem& p) {
  const TensorDesc& y = p.out(0);
  StridedCopy copy(y.shape, std::vector<int64_t>(static_cast<size_t>(y.shape.rank()), 0),
                   strides_of(y), dtype_size(y.dtype));
  return make_kernel([copy, value = value_of(p.attributes)](const KernelArgs& a) {
    copy.run(value->bytes.data(), a.outputs[0].data);
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const int64_t seven = 7;
  const ConstantPtr longs = make_constant<int64_t>(DType::kInt64, {1}, {&seven, 1});
  const TensorDesc shape{DType::kInt64, {2}};
  return {
      {.name = "zeros", .inputs = {shape}, .fill = fill_with(0, {2, 3}), .constant_inputs = {0}},
      {.name = "sevens",
       .attributes = {{"value", longs}},
       .inputs = {shape},
       .fill = fill_with(0, {3, 1}),
       .constant_inputs = {0}},
      {.name = "scalar", .inputs = {{DType::kInt64, {0}}}, .constant_inputs = {0}},
      {.name = "empty", .inputs = {shape}, .fill = fill_with(0, {0, 3}), .constant_inputs = {0}}};
}

}  // namespace

void add_constant_of_shape(Registry& registry) {
  registry.add({.name = "ConstantOfShape",
                .first_opset = 9,
                .infer = infer,
                .reference = reference,
                .cpu = {{"fill", accepts, create}},
                .samples = samples,
                .constant_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
