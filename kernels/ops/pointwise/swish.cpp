// Swish (SiLU), attribute alpha (1): y = x s with s = 1 / (1 + e^-(alpha x)).
// dx = dy (s + alpha x s (1 - s)) (ofsdp.SwishGrad(dy, x)).
// https://onnx.ai/onnx/operators/onnx__Swish.html
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) { grad_of_input(b, "SwishGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return unary_reference(c, [=](double x) { return x / (1 + std::exp(-alpha * x)); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(c.attributes.f("alpha", 1.0f));
  return binary_reference(c, [=](double d, double x) {
    return d * (1 + alpha * x * (1 - 1 / (1 + std::exp(-alpha * x)))) / (1 + std::exp(-alpha * x));
  });
}

struct Swish {
  float alpha;
  explicit Swish(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return x / (T{1} + math::exp(-static_cast<T>(alpha) * x));
  }
};

struct SwishGrad {
  float alpha;
  explicit SwishGrad(const Attributes& a) : alpha(a.f("alpha", 1.0f)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    const T v = static_cast<T>(alpha) * x;
    const T s = math::sigmoid(v);
    return d * (s + v * s * (T{1} - s));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples({}, {{"alpha", 1.5f}});
  list.push_back({.name = "defaults", .inputs = {{DType::kFloat32, {40}}}});
  return list;
}

void swish_grad_body(BodyBuilder& b) {
  const Ref x = b.input(1);
  const Ref scaled = b.mul(x, static_cast<double>(b.attributes().f("alpha", 1.0f)));
  const Ref s = b.emit1("Sigmoid", {scaled});
  const Ref bend = b.mul(b.mul(scaled, s), b.sub(b.like(x, 1), s));
  b.set_output(0, b.mul(b.input(0), b.add(s, bend)));
}

}  // namespace

void add_swish(Registry& registry) {
  registry.add(pointwise({.name = "Swish",
                          .first_opset = 24,
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<Swish>(),
                          .samples = samples}));
  registry.add(pointwise_grad({.name = "SwishGrad",
                               .body = swish_grad_body,
                               .reference = grad_reference,
                               .cpu = binary_kernels<SwishGrad>(),
                               .samples = [] {
                                 return float_pair_samples({}, {{"alpha", 1.5f}});
                               }}));
}

}  // namespace ofsdp::kernels::ops
