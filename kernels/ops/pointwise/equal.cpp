// Equal: y = a == b as bool, broadcast, of all numbers and bool. No gradient.
// https://onnx.ai/onnx/operators/onnx__Equal.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a == b ? 1.0 : 0.0; });
}

struct Equal {
  template <typename T>
  OFSDP_INLINE bool operator()(T a, T b) const {
    return a == b;
  }
};

}  // namespace

void add_equal(Registry& registry) {
  registry.add(pointwise({.name = "Equal",
                          .min_inputs = 2,
                          .first_opset = 19,
                          .infer = infer_comparison,
                          .reference = reference,
                          .cpu = binary_kernels<Equal, kNumberTypes | kBoolType>(),
                          .samples = [] { return samples_of_types(kNumberTypes | kBoolType); }}));
}

}  // namespace ofsdp::kernels::ops
