// Greater: y = a > b as bool, broadcast. No gradient.
// https://onnx.ai/onnx/operators/onnx__Greater.html
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

constexpr auto kGreater = [](auto a, auto b) { return a > b; };

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  desc.dtype = DType::kBool;
  return std::vector{std::move(desc)};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a > b ? 1.0 : 0.0; });
}

template <typename T>
void greater_row(const BinaryRow<T, bool>& row) {
  binary_row(row, kGreater);
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = binary_samples();
  append(list, binary_samples_of(DType::kInt64));
  append(list, binary_samples_of(DType::kInt32));
  return list;
}

}  // namespace

void add_greater(Registry& registry) {
  registry.add({.name = "Greater",
                .min_inputs = 2,
                .first_opset = 9,
                .infer = infer,
                .reference = reference,
                .cpu = {{"float32", accepts_binary<float, bool>,
                         create_binary<float, bool, greater_row<float>>},
                        {"int64", accepts_binary<int64_t, bool>,
                         create_binary<int64_t, bool, greater_row<int64_t>>},
                        {"int32", accepts_binary<int32_t, bool>,
                         create_binary<int32_t, bool, greater_row<int32_t>>}},
                .samples = samples,
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
