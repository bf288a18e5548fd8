// Exp: y = e^x. dx = dy y.
// https://onnx.ai/onnx/operators/onnx__Exp.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { b.set_grad(0, b.emit1("Mul", {b.grad_output(0), b.output(0)})); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::exp(x); });
}

struct Exp {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::exp(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  return list;
}

}  // namespace

void add_exp(Registry& registry) {
  registry.add(pointwise({.name = "Exp",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Exp>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
