// LeakyRelu, attribute alpha (0.01): y = x where x >= 0, else alpha x.
// dx = dy where x > 0, else alpha dy (ofsdp.LeakyReluGrad(dy, x), the same attribute).
// https://onnx.ai/onnx/operators/onnx__LeakyRelu.html
#include "kernels/core/standard_body.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "LeakyReluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 0.01f));
  return unary_reference(c, [=](double x) { return x < 0 ? alpha * x : x; });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 0.01f));
  return binary_reference(c, [=](double d, double x) { return x > 0 ? d : alpha * d; });
}

struct LeakyRelu {
  float alpha;
  explicit LeakyRelu(const Attributes& a) : alpha(a.f("alpha", 0.01f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return x < T{0} ? static_cast<T>(alpha) * x : x;
  }
};

struct LeakyReluGrad {
  float alpha;
  explicit LeakyReluGrad(const Attributes& a) : alpha(a.f("alpha", 0.01f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return x > T{0} ? d : static_cast<T>(alpha) * d;
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"alpha", 0.25f}});
  list.push_back(extreme_sample({{"alpha", 0.25f}}));
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

void leaky_relu_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), x = b.input(1);
  const Ref less = b.mul(dy, static_cast<double>(b.attributes().f("alpha", 0.01f)));
  b.set_output(0, b.where(b.emit1("Greater", {x, b.like(x, 0)}), dy, less));
}

}  // namespace

void add_leaky_relu(Registry& registry) {
  registry.add(pointwise({.name = "LeakyRelu",
                          .first_opset = 16,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<LeakyRelu>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "LeakyReluGrad",
                               .body = leaky_relu_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<LeakyReluGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"alpha", 0.25f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
