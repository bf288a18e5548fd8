// Mul: y = a * b, broadcast, of all numbers; integers wrap. da = dy b, db = dy a, each summed over
// what was broadcast.
// https://onnx.ai/onnx/operators/onnx__Mul.html
#include "kernels/cpu/integer_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  for (size_t i = 0; i < 2; ++i) {
    if (!b.needs_grad(i)) continue;
    b.set_grad(i, b.sum_to(b.emit1("Mul", {dy, b.input(1 - i)}), b.input(i)));
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return binary_reference(c, [](double a, double b) { return a * b; });
}

struct Mul {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    return wrapping(a, b, [](auto p, auto q) { return p * q; });
  }
};

}  // namespace

void add_mul(Registry& registry) {
  registry.add(pointwise({.name = "Mul",
                          .min_inputs = 2,
                          .first_opset = 14,
                          .grad = grad,
                          .reference = reference,
                          .cpu = binary_kernels<Mul, kNumberTypes>(),
                          .samples = [] { return samples_of_types(kNumberTypes); }}));
}

}  // namespace ofsdp::kernels::ops
