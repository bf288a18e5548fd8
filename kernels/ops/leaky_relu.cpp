// LeakyRelu, attribute alpha (0.01): y = x where x >= 0, else alpha x.
// dx = dy where x > 0, else alpha dy (ofsdp.LeakyReluGrad(dy, x), the same attribute).
// https://onnx.ai/onnx/operators/onnx__LeakyRelu.html
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/list.h"
#include "kernels/ops/support.h"

namespace ofsdp::ops {
namespace {

float alpha_of(const Attributes& attributes) { return attributes.f("alpha", 0.01f); }

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.LeakyReluGrad", {b.grad_output(0), b.input(0)}, b.attributes()));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const double alpha = static_cast<double>(alpha_of(c.attributes));
  return unary_reference(c, [alpha](double v) { return v < 0 ? alpha * v : v; });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const double alpha = static_cast<double>(alpha_of(c.attributes));
  return binary_reference(c, [alpha](double d, double v) { return v > 0 ? d : alpha * d; });
}

OFSDP_MULTIARCH void leaky_relu_span(const float* x, float* y, int64_t n, float alpha) {
  unary_row(x, y, n, [alpha](float v) { return v < 0.0f ? alpha * v : v; });
}

OFSDP_MULTIARCH void leaky_relu_grad_span(const float* dy, const float* x, float* dx, int64_t n,
                                          float alpha) {
  binary_row(BinaryRow<float>{dy, 1, x, 1, dx, n},
             [alpha](float d, float v) { return v > 0.0f ? d : alpha * d; });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([n = p.out(0).numel(), alpha = alpha_of(p.attributes)](const KernelArgs& a) {
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      leaky_relu_span(a.in<float>(0) + begin, a.out<float>(0) + begin, end - begin, alpha);
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([n = p.out(0).numel(), alpha = alpha_of(p.attributes)](const KernelArgs& a) {
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      leaky_relu_grad_span(a.in<float>(0) + begin, a.in<float>(1) + begin, a.out<float>(0) + begin,
                           end - begin, alpha);
    });
    return ok_status();
  });
}

bool accepts(const Problem& p) { return p.all_dtype(DType::kFloat32); }

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = unary_samples();
  list[1].attributes.set("alpha", 0.25f);
  return list;
}

}  // namespace

void add_leaky_relu(Registry& registry) {
  registry.add({.name = "LeakyRelu",
                .first_opset = 6,
                .infer = infer_same,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = samples,
                .inplace_inputs = {0},
                .layout = LayoutRule::kElementwise});
  registry.add({.domain = kOwnDomain,
                .name = "LeakyReluGrad",
                .min_inputs = 2,
                .infer = infer_binary,
                .reference = grad_reference,
                .cpu = {{"loops", accepts, create_grad}},
                .samples = [] { return pair_samples(); },
                .inplace_inputs = {0, 1},
                .layout = LayoutRule::kElementwise});
}

}  // namespace ofsdp::ops
