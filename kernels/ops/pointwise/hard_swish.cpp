// HardSwish: y = x max(0, min(1, x / 6 + 1/2)).
// dx = dy (x / 3 + 1/2) where |x| < 3, dy above and 0 below (ofsdp.HardSwishGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__HardSwish.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void twice(size_t, std::vector<double>& values) {
  for (double& v : values) v *= 2.5;
}

void grad(GradBuilder& b) { grad_of_input(b, "HardSwishGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(c, [](double x) { return x * std::max(0.0, std::min(1.0, x / 6 + 0.5)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [](double d, double x) {
    return x >= 3 ? d : x <= -3 ? 0 : d * (x / 3 + 0.5);
  });
}

struct HardSwish {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    const T gate = x * T(1.0 / 6) + T(0.5);
    const T below = gate > T{1} ? T{1} : gate;
    return x * (below < T{0} ? T{0} : below);
  }
};

struct HardSwishGrad {
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x >= T{3} ? d : (x <= T{-3} ? T{0} : d * (x * T(1.0 / 3) + T(0.5)));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples(twice);
  return list;
}

}  // namespace

void add_hard_swish(Registry& registry) {
  registry.add(pointwise({.name = "HardSwish",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<HardSwish>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "HardSwishGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<HardSwishGrad>(),
                               .samples = [] { return float_pair_samples(twice); }}));
}

}  // namespace ofsdp::kernels::ops
