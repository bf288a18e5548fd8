// Constant: a value from an attribute: value (a tensor), value_float(s) or value_int(s). The
// importer folds it away by running it. No gradient: it has no inputs, and a Constant is never
// trained. https://onnx.ai/onnx/operators/onnx__Constant.html
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

template <typename T>
ConstantPtr list_of(DType dtype, const std::vector<T>& values) {
  return make_constant<T>(dtype, Shape({static_cast<int64_t>(values.size())}), values);
}

Result<ConstantPtr> value_of(const Attributes& a) {
  const auto tensor = a.get<ConstantPtr>("value", nullptr);
  if (tensor != nullptr) return tensor;
  if (a.has("value_int")) {
    const int64_t value = a.i("value_int", 0);
    return make_constant<int64_t>(DType::kInt64, {}, {&value, 1});
  }
  if (a.has("value_float")) {
    const float value = a.f("value_float", 0);
    return make_constant<float>(DType::kFloat32, {}, {&value, 1});
  }
  if (a.has("value_ints")) return list_of(DType::kInt64, a.ints("value_ints"));
  if (a.has("value_floats")) {
    return list_of(DType::kFloat32, a.get<std::vector<float>>("value_floats", {}));
  }
  return input_error("expected value, value_int(s) or value_float(s), found '{}'", a.text());
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const ConstantPtr value, value_of(c.attributes));
  return std::vector{value->desc};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ConstantPtr value = *value_of(c.attributes);
  return {{c.output_descs[0], to_doubles(value->desc, value->bytes.data())}};
}

bool accepts(const Problem& p) { return value_of(p.attributes).ok(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([value = *value_of(p.attributes)](const KernelArgs& a) {
    if (!value->bytes.empty()) {
      std::memcpy(a.outputs[0].data, value->bytes.data(), value->bytes.size());
    }
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const std::vector<float> numbers = {1.5f, -2, 3, 4, 5, 6};
  const ConstantPtr tensor = make_constant<float>(DType::kFloat32, {2, 3}, numbers);
  const ConstantPtr none = make_constant<float>(DType::kFloat32, {0, 3}, {});
  return {{.name = "tensor", .attributes = {{"value", tensor}}},
          {.name = "empty", .attributes = {{"value", none}}},
          {.name = "int", .attributes = {{"value_int", int64_t{-7}}}},
          {.name = "float", .attributes = {{"value_float", 0.25f}}},
          {.name = "ints", .attributes = {{"value_ints", std::vector<int64_t>{3, -1}}}},
          {.name = "floats", .attributes = {{"value_floats", numbers}}}};
}

}  // namespace

void add_constant(Registry& registry) {
  registry.add({.name = "Constant",
                .min_inputs = 0,
                .infer = infer,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
