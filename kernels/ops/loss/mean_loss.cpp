// Losses that average a function of two equally shaped tensors over all elements.
//
// ofsdp.MseLoss(p, t): mean of (p - t)^2. dp = dloss 2 (p - t) / n
// (ofsdp.MseLossGrad(dloss, p, t)); dt = -dp.
//
// ofsdp.BceWithLogitsLoss(x, t): mean of -t ln s(x) - (1 - t) ln(1 - s(x)) with the sigmoid s,
// computed as max(x, 0) - x t + ln(1 + e^-|x|), which neither overflows nor cancels. dx = dloss
// (s(x) - t) / n (ofsdp.BceWithLogitsLossGrad(dloss, x, t)); dt = -dloss x / n.
//
// The kernels sum blocks of kMeanBlock elements in double, each on one thread, then the blocks in
// order, so the thread count does not change the bits. If there are no elements, the mean is 0.
#include <algorithm>
#include <cmath>

#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace mean_loss {
namespace {

constexpr int64_t kMeanBlock = 4096;

Status same_shape(const TensorDesc& prediction, const TensorDesc& target) {
  if (prediction.shape == target.shape && prediction.dtype == target.dtype) return ok_status();
  return input_error("expected prediction and target alike, found {} and {}", prediction.text(),
                     target.text());
}

// (prediction, target) -> a scalar.
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(same_shape(c.inputs[0], c.inputs[1]));
  return std::vector{TensorDesc{c.inputs[0].dtype, {}}};
}

// (dloss, prediction, target) -> a gradient like the prediction.
Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(same_shape(c.inputs[1], c.inputs[2]));
  return std::vector{c.inputs[1]};
}

using SumSpan = double (*)(const float* prediction, const float* target, int64_t n);
template <SumSpan span>
std::unique_ptr<Kernel> create(const Problem& p) {
  const int64_t n = p.in(0).numel();
  const int64_t blocks = (n + kMeanBlock - 1) / kMeanBlock;
  auto run = [n, blocks](const KernelArgs& a) {
    auto* sums = reinterpret_cast<double*>(a.workspace);
    parallel_each(blocks, 2, [&](int64_t block) {
      const int64_t first = block * kMeanBlock;
      sums[block] =
          span(a.in<float>(0) + first, a.in<float>(1) + first, std::min(kMeanBlock, n - first));
    });
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
    *a.out<float>(0) = n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
    return ok_status();
  };
  return make_kernel(run, static_cast<size_t>(blocks) * sizeof(double));
}

// diff[i] = scale * f'(prediction[i], target[i]); scale is dloss / elements.
using DiffSpan = void (*)(float scale, const float* prediction, const float* target, float* diff,
                          int64_t n);
template <DiffSpan span>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([n = p.out(0).numel()](const KernelArgs& a) {
    const auto scale = static_cast<float>(static_cast<double>(*a.in<float>(0)) /
                                          static_cast<double>(std::max<int64_t>(n, 1)));
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      span(scale, a.in<float>(1) + begin, a.in<float>(2) + begin, a.out<float>(0) + begin,
           end - begin);
    });
  });
}

std::vector<RefTensor> reference_of(const ReferenceContext& c, const auto& f) {
  const size_t n = c.inputs[0].values.size();
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += f(c.inputs[0].values[i], c.inputs[1].values[i]);
  return {{c.output_descs[0], {n == 0 ? 0 : sum / static_cast<double>(n)}}};
}

std::vector<RefTensor> grad_reference_of(const ReferenceContext& c, const auto& f) {
  RefTensor diff{c.output_descs[0], {}};
  const size_t n = c.inputs[1].values.size();
  for (size_t i = 0; i < n; ++i) {
    diff.values.push_back(c.inputs[0].values[0] / static_cast<double>(n) *
                          f(c.inputs[1].values[i], c.inputs[2].values[i]));
  }
  return {diff};
}

// --- MseLoss ---

void mse_grad(GradBuilder& b) {
  const Ref diff = b.emit1("ofsdp.MseLossGrad", {b.grad_output(0), b.input(0), b.input(1)});
  if (b.needs_grad(0)) b.set_grad(0, diff);
  if (b.needs_grad(1)) b.set_grad(1, b.emit1("Neg", {diff}));
}

std::vector<RefTensor> mse_reference(const ReferenceContext& c) {
  return reference_of(c, [](double p, double t) { return (p - t) * (p - t); });
}

std::vector<RefTensor> mse_grad_reference(const ReferenceContext& c) {
  return grad_reference_of(c, [](double p, double t) { return 2 * (p - t); });
}

OFSDP_MULTIARCH double mse_losses(const float* p, const float* t, int64_t n) {
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

OFSDP_MULTIARCH void mse_diffs(float scale, const float* p, const float* t, float* diff,
                               int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) diff[i] = 2.0f * scale * (p[i] - t[i]);
}

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

// --- BceWithLogitsLoss ---

void bce_grad(GradBuilder& b) {
  const Ref dloss = b.grad_output(0);
  if (b.needs_grad(0)) {
    b.set_grad(0, b.emit1("ofsdp.BceWithLogitsLossGrad", {dloss, b.input(0), b.input(1)}));
  }
  if (!b.needs_grad(1)) return;
  const TensorDesc& x = b.desc(b.input(0));
  const Ref scale = b.scalar(x.dtype, -1.0 / static_cast<double>(std::max<int64_t>(x.numel(), 1)));
  b.set_grad(1, b.emit1("Mul", {b.input(0), b.emit1("Mul", {dloss, scale})}));
}

std::vector<RefTensor> bce_reference(const ReferenceContext& c) {
  return reference_of(c, [](double x, double t) {
    return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x)));
  });
}

std::vector<RefTensor> bce_grad_reference(const ReferenceContext& c) {
  return grad_reference_of(c, [](double x, double t) { return 1 / (1 + std::exp(-x)) - t; });
}

double bce_losses(const float* x, const float* t, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float tail = std::log1p(std::exp(-std::abs(x[i])));
    sum += static_cast<double>(std::max(x[i], 0.0f) - x[i] * t[i]) + static_cast<double>(tail);
  }
  return sum;
}

OFSDP_MULTIARCH void bce_diffs(float scale, const float* x, const float* t, float* diff,
                               int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) diff[i] = scale * (1.0f / (1.0f + vector_exp(-x[i])) - t[i]);
}

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

// A loss: functions and standard bodies.
struct MeanLoss {
  const char* name;
  void (*grad)(GradBuilder&);
  StandardBody body, grad_body;
  std::vector<RefTensor> (*reference)(const ReferenceContext&);
  std::vector<RefTensor> (*grad_reference)(const ReferenceContext&);
};

template <SumSpan losses, DiffSpan diffs>
void add(Registry& registry, const MeanLoss& loss) {
  registry.add_own(make_op(loss.name, {infer, loss.grad, loss.reference},
                           {{"blocks", accepts_plain_of<float>, create<losses>}},
                           {.min_inputs = 2, .body = loss.body, .float32_only = true}));
  registry.add_own(make_op(std::string(loss.name) + "Grad",
                           {infer_grad, nullptr, loss.grad_reference},
                           {{"loops", accepts_plain_of<float>, create_grad<diffs>}},
                           {.min_inputs = 3, .body = loss.grad_body, .inplace_inputs = {1, 2}}));
}

}  // namespace
}  // namespace mean_loss

void add_mean_loss(Registry& registry) {
  using namespace mean_loss;
  add<mse_losses, mse_diffs>(registry, {"MseLoss", mse_grad, mse_loss_body, mse_loss_grad_body,
                                        mse_reference, mse_grad_reference});
  add<bce_losses, bce_diffs>(registry,
                             {"BceWithLogitsLoss", bce_grad, bce_with_logits_loss_body,
                              bce_with_logits_loss_grad_body, bce_reference, bce_grad_reference});
}

}  // namespace ofsdp::kernels::ops
