// Asinh: y = arsinh x = ln(x + sqrt(x^2 + 1)). dx = dy / sqrt(x^2 + 1).
// https://onnx.ai/onnx/operators/onnx__Asinh.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref one = b.scalar(b.desc(b.input(0)).dtype, 1);
  const Ref above = b.emit1("Add", {b.emit1("Mul", {b.input(0), b.input(0)}), one});
  b.set_grad(0, b.emit1("Div", {b.grad_output(0), b.emit1("Sqrt", {above})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::asinh(x); });
}

struct Asinh {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::asinh(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_asinh(Registry& registry) {
  registry.add(pointwise({.name = "Asinh",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Asinh>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
