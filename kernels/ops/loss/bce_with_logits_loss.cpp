// ofsdp.BceWithLogitsLoss(x, t): the mean of -t ln s(x) - (1 - t) ln(1 - s(x)) with s the sigmoid,
// over all elements, as max(x, 0) - x t + ln(1 + e^-|x|), which neither overflows nor cancels. dx =
// dloss (s(x) - t) / n (ofsdp.BceWithLogitsLossGrad(dloss, x, t)); dt = -dloss x / n.
#include <algorithm>
#include <cmath>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/loss/mean_loss.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dloss = b.grad_output(0);
  if (b.needs_grad(0)) {
    b.set_grad(0, b.emit1("ofsdp.BceWithLogitsLossGrad", {dloss, b.input(0), b.input(1)}));
  }
  if (!b.needs_grad(1)) return;
  const TensorDesc& x = b.desc(b.input(0));
  const Ref scale = b.scalar(x.dtype, -1.0 / static_cast<double>(std::max<int64_t>(x.numel(), 1)));
  b.set_grad(1, b.emit1("Mul", {b.input(0), b.emit1("Mul", {dloss, scale})}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return mean_loss_reference(c, [](double x, double t) {
    return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x)));
  });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return mean_loss_grad_reference(c, [](double x, double t) { return 1 / (1 + std::exp(-x)) - t; });
}

double losses(const float* x, const float* t, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float tail = std::log1p(std::exp(-std::abs(x[i])));
    sum += static_cast<double>(std::max(x[i], 0.0f) - x[i] * t[i]) + static_cast<double>(tail);
  }
  return sum;
}

OFSDP_MULTIARCH void diffs(float scale, const float* x, const float* t, float* diff, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) diff[i] = scale * (1.0f / (1.0f + vector_exp(-x[i])) - t[i]);
}

std::unique_ptr<Kernel> create(const Problem& p) { return mean_loss_kernel(p, losses); }
std::unique_ptr<Kernel> create_grad(const Problem& p) { return mean_loss_grad_kernel(p, diffs); }

void bce_with_logits_loss_body(BodyBuilder& b) {
  const Ref x = b.input(0), t = b.input(1), zero = b.like(x, 0), one = b.like(x, 1);
  if (b.desc(x).shape.numel() == 0) return b.set_output(0, zero);
  const Ref tail = b.emit1("Exp", {b.emit1("Neg", {b.emit1("Abs", {x})})});
  const Ref soft = b.emit1("Log", {b.add(one, tail)});
  const Ref loss = b.add(b.sub(b.emit1("Max", {x, zero}), b.mul(x, t)), soft);
  b.set_output(0, b.emit1("ReduceMean", {loss}, {{"keepdims", int64_t{0}}}));
}

void bce_with_logits_loss_grad_body(BodyBuilder& b) {
  const Ref x = b.input(1);
  const auto n = static_cast<double>(std::max<int64_t>(b.desc(x).shape.numel(), 1));
  const Ref d = b.sub(b.emit1("Sigmoid", {x}), b.input(2));
  b.set_output(0, b.mul(b.mul(b.input(0), 1 / n), d));
}

}  // namespace

void add_bce_with_logits_loss(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "BceWithLogitsLoss",
                .min_inputs = 2,
                .infer = infer_mean_loss,
                .grad = grad,
                .body = bce_with_logits_loss_body,
                .reference = reference,
                .cpu = {{"blocks", accepts_mean_loss, create}},
                .samples = mean_loss_samples});
  registry.add({.domain = kOwnDomain,
                .name = "BceWithLogitsLossGrad",
                .min_inputs = 3,
                .infer = infer_mean_loss_grad,
                .body = bce_with_logits_loss_grad_body,
                .reference = grad_reference,
                .cpu = {{"loops", accepts_mean_loss, create_grad}},
                .samples = mean_loss_grad_samples,
                .inplace_inputs = {1, 2}});
}

}  // namespace ofsdp::kernels::ops
