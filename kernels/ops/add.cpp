// Add: y = a + b, broadcast. da = dy, db = dy, each summed over what was broadcast.
// https://onnx.ai/onnx/operators/onnx__Add.html
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  for (size_t i = 0; i < 2; ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(dy, b.input(i)));
  }
}

constexpr auto kAdd = [](auto a, auto b) { return a + b; };

std::vector<RefTensor> reference(const ReferenceContext& c) { return binary_reference(c, kAdd); }

OFSDP_MULTIARCH void add_floats(const BinaryRow<float>& row) { binary_row(row, kAdd); }

template <typename T>
void add_integers(const BinaryRow<T>& row) {
  binary_row(row, [](T a, T b) { return wrapping(a, b, kAdd); });
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = binary_samples();
  append(list, binary_samples_of(DType::kInt64));
  append(list, binary_samples_of(DType::kInt32));
  return list;
}

}  // namespace

void add_add(Registry& registry) {
  registry.add({.name = "Add",
                .min_inputs = 2,
                .first_opset = 7,
                .infer = infer_binary,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts_binary<float>, create_binary<float, float, add_floats>},
                        {"int64", accepts_binary<int64_t>,
                         create_binary<int64_t, int64_t, add_integers<int64_t>>},
                        {"int32", accepts_binary<int32_t>,
                         create_binary<int32_t, int32_t, add_integers<int32_t>>}},
                .samples = samples,
                .inplace_inputs = {0, 1},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
