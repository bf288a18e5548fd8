// Softsign: y = x / (1 + |x|). dx = dy / (1 + |x|)^2 (ofsdp.SoftsignGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Softsign.html
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "SoftsignGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return x / (1 + std::abs(x)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(
      c, [](double d, double x) { return d / ((1 + std::abs(x)) * (1 + std::abs(x))); });
}

struct Softsign {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return x / (T{1} + math::fabs(x));
  }
};

struct SoftsignGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d / ((T{1} + math::fabs(x)) * (T{1} + math::fabs(x)));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list.push_back(extreme_sample());
  return list;
}

}  // namespace

void add_softsign(Registry& registry) {
  registry.add(pointwise({.name = "Softsign",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Softsign>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "SoftsignGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<SoftsignGrad>(),
                               .samples = [] { return float_pair_samples(); }}));
}

}  // namespace ofsdp::kernels::ops
