// Sinh: y = sinh x = (e^x - e^-x) / 2. dx = dy cosh x.
// https://onnx.ai/onnx/operators/onnx__Sinh.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("Mul", {b.grad_output(0), b.emit1("Cosh", {b.input(0)})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::sinh(x); });
}

struct Sinh {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::sinh(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  return list;
}

}  // namespace

void add_sinh(Registry& registry) {
  registry.add(pointwise({.name = "Sinh",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Sinh>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
