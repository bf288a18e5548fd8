// Sum: y = the sum of all inputs, broadcast, from the first to the last. dx = dy of each, summed over
// what was broadcast.
// https://onnx.ai/onnx/operators/onnx__Sum.html
#include <numeric>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/variadic.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(b.grad_output(0), b.input(i)));
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return variadic_reference(
      c, [](const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); });
}

struct Sum {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    return a + b;
  }
};

}  // namespace

void add_sum(Registry& registry) {
  registry.add(variadic({.name = "Sum",
                         .first_opset = 13,
                         .grad = grad,
                         .reference = reference,
                         .cpu = variadic_kernels<Sum, kFloatTypes>(),
                         .samples = [] { return variadic_samples(kFloatTypes); }}));
}

}  // namespace ofsdp::kernels::ops
