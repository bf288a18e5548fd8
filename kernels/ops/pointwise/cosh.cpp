// Cosh: y = cosh x = (e^x + e^-x) / 2. dx = dy sinh x.
// https://onnx.ai/onnx/operators/onnx__Cosh.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("Mul", {b.grad_output(0), b.emit1("Sinh", {b.input(0)})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::cosh(x); });
}

struct Cosh {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::cosh(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  return list;
}

}  // namespace

void add_cosh(Registry& registry) {
  registry.add(pointwise({.name = "Cosh",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Cosh>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
