// ThresholdedRelu, attribute alpha (1): y = x where x > alpha, else 0.
// dx = dy where x > alpha, else 0 (ofsdp.ThresholdedReluGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__ThresholdedRelu.html
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "ThresholdedReluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return unary_reference(c, [=](double x) { return x > alpha ? x : 0; });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return binary_reference(c, [=](double d, double x) { return x > alpha ? d : 0; });
}

struct ThresholdedRelu {
  float alpha;
  explicit ThresholdedRelu(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return x > static_cast<T>(alpha) ? x : T{0};
  }
};

struct ThresholdedReluGrad {
  float alpha;
  explicit ThresholdedReluGrad(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x > static_cast<T>(alpha) ? d : T{0};
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"alpha", 0.25f}});
  list.push_back(extreme_sample({{"alpha", 0.25f}}));
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

}  // namespace

void add_thresholded_relu(Registry& registry) {
  registry.add(pointwise({.name = "ThresholdedRelu",
                          .first_opset = 22,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<ThresholdedRelu>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "ThresholdedReluGrad",
                               .reference = grad_reference,
                               .cpu = binary_kernels<ThresholdedReluGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"alpha", 0.25f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
