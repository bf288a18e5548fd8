// Less: y = a < b as bool, broadcast. No gradient.
// https://onnx.ai/onnx/operators/onnx__Less.html
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

constexpr auto kLess = [](auto a, auto b) { return a < b; };

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  desc.dtype = DType::kBool;
  return std::vector{std::move(desc)};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a < b ? 1.0 : 0.0; });
}

template <typename T>
void less_row(const BinaryRow<T, bool>& row) {
  binary_row(row, kLess);
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = binary_samples();
  append(list, binary_samples_of(DType::kInt64));
  append(list, binary_samples_of(DType::kInt32));
  return list;
}

}  // namespace

void add_less(Registry& registry) {
  registry.add({.name = "Less",
                .min_inputs = 2,
                .first_opset = 9,
                .infer = infer,
                .reference = reference,
                .cpu = {{"float32", accepts_binary<float, bool>,
                         create_binary<float, bool, less_row<float>>},
                        {"int64", accepts_binary<int64_t, bool>,
                         create_binary<int64_t, bool, less_row<int64_t>>},
                        {"int32", accepts_binary<int32_t, bool>,
                         create_binary<int32_t, bool, less_row<int32_t>>}},
                .samples = samples,
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
