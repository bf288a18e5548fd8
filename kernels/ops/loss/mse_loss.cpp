// ofsdp.MseLoss(prediction, target): the mean of (p - t)^2 over all elements.
// dp = dloss 2 (p - t) / n (ofsdp.MseLossGrad(dloss, p, t)); dt = -dp.
#include <algorithm>

#include "kernels/core/standard_body.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/loss/mean_loss.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref diff = b.emit1("ofsdp.MseLossGrad", {b.grad_output(0), b.input(0), b.input(1)});
  if (b.needs_grad(0)) b.set_grad(0, diff);
  if (b.needs_grad(1)) b.set_grad(1, b.emit1("Neg", {diff}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return mean_loss_reference(c, [](double p, double t) { return (p - t) * (p - t); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return mean_loss_grad_reference(c, [](double p, double t) { return 2 * (p - t); });
}

OFSDP_MULTIARCH double squares(const float* p, const float* t, int64_t n) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      const double d = static_cast<double>(p[i + lane]) - static_cast<double>(t[i + lane]);
      lanes[lane] += d * d;
    }
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) {
    const double d = static_cast<double>(p[i]) - static_cast<double>(t[i]);
    lanes[lane] += d * d;
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

OFSDP_MULTIARCH void diffs(float scale, const float* p, const float* t, float* diff, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) diff[i] = 2.0f * scale * (p[i] - t[i]);
}

std::unique_ptr<Kernel> create(const Problem& p) { return mean_loss_kernel(p, squares); }
std::unique_ptr<Kernel> create_grad(const Problem& p) { return mean_loss_grad_kernel(p, diffs); }

void mse_loss_body(BodyBuilder& b) {
  const Ref d = b.sub(b.input(0), b.input(1)), square = b.mul(d, d);
  const Shape& shape = b.desc(d).shape;
  if (shape.numel() == 0) return b.set_output(0, b.like(d, 0));
  b.set_output(0, b.emit1("ReduceMean", {square}, {{"keepdims", int64_t{0}}}));
}

void mse_loss_grad_body(BodyBuilder& b) {
  const Ref d = b.sub(b.input(1), b.input(2));
  const auto n = static_cast<double>(std::max<int64_t>(b.desc(d).shape.numel(), 1));
  b.set_output(0, b.mul(b.mul(b.input(0), 2 / n), d));
}

}  // namespace

void add_mse_loss(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "MseLoss",
                .min_inputs = 2,
                .infer = infer_mean_loss,
                .grad = grad,
                .body = mse_loss_body,
                .reference = reference,
                .cpu = {{"blocks", accepts_mean_loss, create}},
                .samples = mean_loss_samples});
  registry.add({.domain = kOwnDomain,
                .name = "MseLossGrad",
                .min_inputs = 3,
                .infer = infer_mean_loss_grad,
                .body = mse_loss_grad_body,
                .reference = grad_reference,
                .cpu = {{"loops", accepts_mean_loss, create_grad}},
                .samples = mean_loss_grad_samples,
                .inplace_inputs = {1, 2}});
}

}  // namespace ofsdp::kernels::ops
