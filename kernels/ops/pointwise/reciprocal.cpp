// Reciprocal: y = 1 / x. dx = -dy y^2.
// https://onnx.ai/onnx/operators/onnx__Reciprocal.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref square = b.emit1("Mul", {b.output(0), b.output(0)});
  b.set_grad(0, b.emit1("Neg", {b.emit1("Mul", {b.grad_output(0), square})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return 1 / x; });
}

struct Reciprocal {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return T{1} / x;
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(positive_fill(0.25));
  return list;
}

}  // namespace

void add_reciprocal(Registry& registry) {
  registry.add(pointwise({.name = "Reciprocal",
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Reciprocal>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
