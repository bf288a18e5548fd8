// Sqrt: y = sqrt(x). dx = dy / (2 y).
// https://onnx.ai/onnx/operators/onnx__Sqrt.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref half = b.scalar(b.desc(b.grad_output(0)).dtype, 0.5);
  const Ref scaled = b.emit1("Mul", {b.grad_output(0), half});
  b.set_grad(0, b.emit1("Div", {scaled, b.output(0)}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::sqrt(x); });
}

struct Sqrt {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::sqrt(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(positive_fill(0.25));
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_sqrt(Registry& registry) {
  registry.add(pointwise({.name = "Sqrt",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Sqrt>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
