// com.microsoft.QuickGelu, attribute alpha (1.702): y = x / (1 + e^-(alpha x)), which is Swish with
// another default; dx is ofsdp.SwishGrad(dy, x) with that alpha.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QuickGelu
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

float alpha_of(const Attributes& attributes) { return attributes.f("alpha", 1.702f); }

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.SwishGrad", {b.grad_output(0), b.input(0)},
                        {{"alpha", alpha_of(b.attributes())}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto alpha = static_cast<double>(alpha_of(c.attributes));
  return unary_reference(c, [alpha](double x) { return x / (1 + std::exp(-alpha * x)); });
}

struct QuickGelu {
  float alpha;
  explicit QuickGelu(const Attributes& a) : alpha(alpha_of(a)) {}
  template <typename T>
  OFSDP_INLINE T operator()(T x) const {
    return x / (T{1} + math::exp(-static_cast<T>(alpha) * x));
  }
};

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = float_samples();
  list[1].attributes.set("alpha", 1.0f);
  return list;
}

}  // namespace

void add_quick_gelu(Registry& registry) {
  registry.add(pointwise({.domain = "com.microsoft",
                          .name = "QuickGelu",
                          .grad = grad,
                          .reference = reference,
                          .cpu = unary_kernels<QuickGelu>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
