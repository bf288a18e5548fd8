// GreaterOrEqual: y = a >= b as bool, broadcast, of all numbers. No gradient.
// https://onnx.ai/onnx/operators/onnx__GreaterOrEqual.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a >= b ? 1.0 : 0.0; });
}

struct GreaterOrEqual {
  template <typename T>
  OFSDP_INLINE bool operator()(T a, T b) const {
    return a >= b;
  }
};

}  // namespace

void add_greater_or_equal(Registry& registry) {
  registry.add(pointwise({.name = "GreaterOrEqual",
                          .min_inputs = 2,
                          .first_opset = 16,
                          .infer = infer_comparison,
                          .reference = reference,
                          .cpu = binary_kernels<GreaterOrEqual, kNumberTypes>(),
                          .samples = [] { return samples_of_types(kNumberTypes); }}));
}

}  // namespace ofsdp::kernels::ops
