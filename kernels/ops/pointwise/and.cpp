// And: y = a and b, of bool, broadcast. No gradient.
// https://onnx.ai/onnx/operators/onnx__And.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return (a != 0) && (b != 0) ? 1.0 : 0.0; });
}

struct And {
  template <typename T>
  OFSDP_INLINE bool operator()(T a, T b) const {
    return a && b;
  }
};

}  // namespace

void add_and(Registry& registry) {
  registry.add(pointwise({.name = "And",
                          .min_inputs = 2,
                          .first_opset = 7,
                          .infer = infer_comparison,
                          .reference = reference,
                          .cpu = binary_kernels<And, kBoolType>(),
                          .samples = [] { return samples_of_types(kBoolType); }}));
}

}  // namespace ofsdp::kernels::ops
