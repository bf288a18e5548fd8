// Less: y = a < b as bool, broadcast, of all numbers. No gradient.
// https://onnx.ai/onnx/operators/onnx__Less.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a < b ? 1.0 : 0.0; });
}

struct Less {
  template <typename T>
  OFSDP_INLINE bool operator()(T a, T b) const {
    return a < b;
  }
};

}  // namespace

void add_less(Registry& registry) {
  registry.add(pointwise({.name = "Less",
                          .min_inputs = 2,
                          .first_opset = 13,
                          .infer = infer_comparison,
                          .reference = reference,
                          .cpu = binary_kernels<Less, kNumberTypes>(),
                          .samples = [] { return samples_of_types(kNumberTypes); }}));
}

}  // namespace ofsdp::kernels::ops
