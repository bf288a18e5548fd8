// Gelu, attribute approximate ("none" or "tanh"): y = x P(X <= x) of a normal X; the formulas of
// both forms are in gelu.h. dx = dy times the derivative (ofsdp.GeluGrad(dy, x), the same
// attribute). com.microsoft's Gelu, of onnxruntime's optimizer, is the one with erf.
// https://onnx.ai/onnx/operators/onnx__Gelu.html
#include "kernels/ops/pointwise/gelu.h"

#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {

double reference_gelu(double x, bool tanh) {
  if (!tanh) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double reference_gelu_slope(double x, bool tanh) {
  if (!tanh) {
    return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) +
           x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
  }
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  const double slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope;
}

namespace {

bool is_tanh(const Attributes& a) { return a.s("approximate", "none") == "tanh"; }

void grad(GradBuilder& b) { grad_of_input(b, "GeluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(
      c, [tanh = is_tanh(c.attributes)](double x) { return reference_gelu(x, tanh); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [tanh = is_tanh(c.attributes)](double d, double x) {
    return d * reference_gelu_slope(x, tanh);
  });
}

struct Erf {
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return gelu_erf(x);
  }
  template <typename T>
  OFSDP_INLINE T operator()(T d, T x) const {
    return d * gelu_erf_slope(x);
  }
};

std::unique_ptr<Kernel> create(const Problem& p) {
  return is_tanh(p.attributes) ? create_unary_of<GeluTanh, kFloatTypes>(p)
                               : create_unary_of<Erf, kFloatTypes>(p);
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return is_tanh(p.attributes) ? create_binary_of<GeluTanh, kFloatTypes>(p)
                               : create_binary_of<Erf, kFloatTypes>(p);
}

std::unique_ptr<Kernel> create_16(const Problem& p) {
  return is_tanh(p.attributes) ? create_unary_16<GeluTanh>(p) : create_unary_16<Erf>(p);
}

std::unique_ptr<Kernel> create_grad_16(const Problem& p) {
  return is_tanh(p.attributes) ? create_binary_16<GeluTanh>(p) : create_binary_16<Erf>(p);
}

std::vector<SampleCase> both_forms(std::vector<SampleCase> list) {
  std::vector<SampleCase> tanh = list;
  for (SampleCase& s : tanh) {
    s.name += "_tanh";
    s.attributes.set("approximate", std::string("tanh"));
  }
  append(list, std::move(tanh));
  return list;
}

void wide(size_t, std::vector<double>& values) {
  for (double& v : values) v *= 3;
}

void gelu_grad_body(BodyBuilder& b) {
  const Ref x = b.input(1), one = b.like(x, 1), square = b.mul(x, x);
  Ref slope;
  if (b.attributes().s("approximate", "none") == "tanh") {
    const Ref inner = b.mul(b.add(x, b.mul(b.mul(square, x), 0.044715)), std::sqrt(2 / M_PI));
    const Ref t = b.emit1("Tanh", {inner});
    const Ref steep = b.mul(b.add(one, b.mul(square, 3 * 0.044715)), std::sqrt(2 / M_PI));
    const Ref tail = b.mul(b.mul(x, b.sub(one, b.mul(t, t))), steep);
    slope = b.mul(b.add(b.add(one, t), tail), 0.5);
  } else {
    const Ref below = b.add(one, b.emit1("Erf", {b.mul(x, 1 / std::sqrt(2.0))}));
    const Ref density = b.mul(b.emit1("Exp", {b.mul(square, -0.5)}), 1 / std::sqrt(2 * M_PI));
    slope = b.add(b.mul(below, 0.5), b.mul(x, density));
  }
  b.set_output(0, b.mul(b.input(0), slope));
}

}  // namespace

void add_gelu(Registry& registry) {
  for (const char* domain : {"", "com.microsoft"}) {
    registry.add(pointwise({.domain = domain,
                            .name = "Gelu",
                            .grad = grad,
                            .reference = reference,
                            .cpu = {{"loops", accepts_unary_of<kFloatTypes>, create},
                                    {"blocks", accepts_unary_16, create_16}},
                            .samples = [] { return both_forms(float_samples(wide)); }}));
  }
  registry.add(pointwise_grad({.name = "GeluGrad",
                               .body = gelu_grad_body,
                               .reference = grad_reference,
                               .cpu = {{"loops", accepts_binary_of<kFloatTypes>, create_grad},
                                       {"blocks", accepts_binary_16, create_grad_16}},
                               .samples = [] { return both_forms(float_pair_samples(wide)); }}));
}

}  // namespace ofsdp::kernels::ops
