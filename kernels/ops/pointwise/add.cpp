// Add: y = a + b, broadcast, of all numbers; integers wrap. da = dy, db = dy, each summed over what
// was broadcast.
// https://onnx.ai/onnx/operators/onnx__Add.html
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  for (size_t i = 0; i < 2; ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(dy, b.input(i)));
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a + b; });
}

struct Add {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    return wrapping(a, b, [](auto p, auto q) { return p + q; });
  }
};

}  // namespace

void add_add(Registry& registry) {
  registry.add(pointwise({.name = "Add",
                          .min_inputs = 2,
                          .first_opset = 14,
                          .grad = grad,
                          .reference = reference,
                          .cpu = binary_kernels<Add, kNumberTypes>(),
                          .samples = [] { return samples_of_types(kNumberTypes); }}));
}

}  // namespace ofsdp::kernels::ops
