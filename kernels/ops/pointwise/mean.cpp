// Mean: y = the mean of all n inputs, broadcast. dx = dy / n of each, summed over what was broadcast.
// https://onnx.ai/onnx/operators/onnx__Mean.html
#include <numeric>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/variadic.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref share = b.scalar(b.desc(dy).dtype, 1.0 / static_cast<double>(b.num_inputs()));
  const Ref part = b.emit1("Mul", {dy, share});
  for (size_t i = 0; i < b.num_inputs(); ++i) {
    if (b.needs_grad(i)) b.set_grad(i, b.sum_to(part, b.input(i)));
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return variadic_reference(c, [](const std::vector<double>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  });
}

struct Mean {
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    return a + b;
  }
  template <typename T>
  OFSDP_INLINE T finish(T sum, T count) const {
    return sum / count;
  }
};

}  // namespace

void add_mean(Registry& registry) {
  registry.add(variadic({.name = "Mean",
                         .first_opset = 13,
                         .grad = grad,
                         .reference = reference,
                         .cpu = variadic_kernels<Mean, kFloatTypes>(),
                         .samples = [] { return variadic_samples(kFloatTypes); }}));
}

}  // namespace ofsdp::kernels::ops
