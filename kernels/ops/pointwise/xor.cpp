// Xor: y = a or b, but not both, of bool, broadcast. No gradient.
// https://onnx.ai/onnx/operators/onnx__Xor.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return (a != 0) != (b != 0) ? 1.0 : 0.0; });
}

struct Xor {
  template <typename T>
  OFSDP_INLINE bool operator()(T a, T b) const {
    return a != b;
  }
};

}  // namespace

void add_xor(Registry& registry) {
  registry.add(pointwise({.name = "Xor",
                          .min_inputs = 2,
                          .first_opset = 7,
                          .infer = infer_comparison,
                          .reference = reference,
                          .cpu = binary_kernels<Xor, kBoolType>(),
                          .samples = [] { return samples_of_types(kBoolType); }}));
}

}  // namespace ofsdp::kernels::ops
