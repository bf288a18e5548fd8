// Atan: y = arctan x. dx = dy / (1 + x^2).
// https://onnx.ai/onnx/operators/onnx__Atan.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref one = b.scalar(b.desc(b.input(0)).dtype, 1);
  const Ref above = b.emit1("Add", {b.emit1("Mul", {b.input(0), b.input(0)}), one});
  b.set_grad(0, b.emit1("Div", {b.grad_output(0), above}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::atan(x); });
}

struct Atan {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::atan(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_atan(Registry& registry) {
  registry.add(pointwise({.name = "Atan",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Atan>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
