// Asin: y = arcsin x. dx = dy / sqrt((1 - x) (1 + x)).
// https://onnx.ai/onnx/operators/onnx__Asin.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref one = b.scalar(b.desc(b.input(0)).dtype, 1);
  const Ref inside =
      b.emit1("Mul", {b.emit1("Sub", {one, b.input(0)}), b.emit1("Add", {one, b.input(0)})});
  b.set_grad(0, b.emit1("Div", {b.grad_output(0), b.emit1("Sqrt", {inside})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::asin(x); });
}

struct Asin {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::asin(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(squashed(0.9));
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_asin(Registry& registry) {
  registry.add(pointwise({.name = "Asin",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Asin>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
