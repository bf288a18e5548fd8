// Atanh: y = artanh x = ln((1 + x) / (1 - x)) / 2. dx = dy / ((1 - x) (1 + x)).
// https://onnx.ai/onnx/operators/onnx__Atanh.html
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
  b.set_grad(0, b.emit1("Div", {b.grad_output(0), inside}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return std::atanh(x); });
}

struct Atanh {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return math::atanh(x);
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(squashed(0.9));
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_atanh(Registry& registry) {
  registry.add(pointwise({.name = "Atanh",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Atanh>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
