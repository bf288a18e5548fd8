// Sub: y = a - b, broadcast, of all numbers; integers wrap. da = dy, db = -dy, each summed over what
// was broadcast.
// https://onnx.ai/onnx/operators/onnx__Sub.html
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (b.needs_grad(0)) b.set_grad(0, b.sum_to(dy, b.input(0)));
  // Summed before it is negated: the sum may be much smaller.
  if (b.needs_grad(1)) b.set_grad(1, b.emit1("Neg", {b.sum_to(dy, b.input(1))}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a - b; });
}

struct Sub {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    return wrapping(a, b, [](auto p, auto q) { return p - q; });
  }
};

// The reference does not wrap.
void larger_first(size_t input, std::vector<double>& values) {
  for (double& v : values) v += input == 0 ? 3 : 0;
}

}  // namespace

void add_sub(Registry& registry) {
  registry.add(pointwise({.name = "Sub",
                          .min_inputs = 2,
                          .first_opset = 14,
                          .grad = grad,
                          .reference = reference,
                          .cpu = binary_kernels<Sub, kNumberTypes>(),
                          .samples = [] { return samples_of_types(kNumberTypes, larger_first); }}));
}

}  // namespace ofsdp::kernels::ops
