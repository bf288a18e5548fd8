// Acosh: y = arcosh x = ln(x + sqrt(x^2 - 1)), x >= 1. dx = dy / sqrt((x - 1) (x + 1)).
// https://onnx.ai/onnx/operators/onnx__Acosh.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref one = b.scalar(b.desc(b.input(0)).dtype, 1);
  const Ref inside =
      b.emit1("Mul", {b.emit1("Sub", {b.input(0), one}), b.emit1("Add", {b.input(0), one})});
  b.set_grad(0, b.emit1("Div", {b.grad_output(0), b.emit1("Sqrt", {inside})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::acosh(x); });
}

struct Acosh {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::acosh(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(positive_fill(1.25));
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_acosh(Registry& registry) {
  registry.add(pointwise({.name = "Acosh",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Acosh>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
