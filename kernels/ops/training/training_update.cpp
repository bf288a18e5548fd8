// The optimizers in ai.onnx.preview.training. Inputs are R (rate), T (updates done so far), then
// all optimized tensors, all gradients, and all tensors of each state. Outputs are the new tensors
// and states in the same order. R and T are scalars and everything else is elementwise, so an
// update may be cut into blocks. Factors that depend on R and T are computed in double and rounded
// once, as in kernels/optimizers. Below, t = T.
//
// ai.onnx.preview.training.Adagrad:
//   g += norm_coefficient x;  h' = h + g^2
//   x' = x - R / (1 + t decay_factor) g / (sqrt(h') + epsilon)
// https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adagrad.html
//
// ai.onnx.preview.training.Adam:
//   g += norm_coefficient x;  v' = alpha v + (1 - alpha) g;  h' = beta h + (1 - beta) g^2
//   r = t > 0 ? R sqrt(1 - beta^t) / (1 - alpha^t) : R
//   x' = (1 - norm_coefficient_post) (x - r v' / (sqrt(h') + epsilon))
// https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html
//
// ai.onnx.preview.training.Momentum:
//   g += norm_coefficient x;  v' = alpha v + (t > 0 ? beta : 1) g
//   x' = x - R v', or with mode nesterov x - R (g + alpha v')
// https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Momentum.html
#include "kernels/ops/training/training_update.h"

#include <array>
#include <cmath>

#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace training_update {

// One tensor: in[0] is the value, in[1] the gradient, in[2..] the states; out[0] is the new value,
// out[1..] the new states.
template <typename T>
struct TrainingSpan {
  const T* const* in;
  T* const* out;
  int64_t count;
  double rate;
  double updates;
};

struct TrainingUpdate {
  std::string name;
  int states;
  void (*update)(const TrainingAttributes&, const TrainingSpan<float>&);
  ReferenceFn reference;
};

constexpr size_t kMaxOperands = 4;  // per tensor: value, gradient, two states
constexpr int64_t kGrain = 1 << 15;

Status check_scalars(const InferContext& c, size_t operands) {
  const size_t tensors = c.inputs.size() < 2 ? 0 : c.inputs.size() - 2;
  if (tensors == 0 || tensors % operands != 0) {
    return input_error("expected R, T and a multiple of {} tensors, found {} inputs", operands,
                       c.inputs.size());
  }
  const TensorDesc& rate = c.inputs[0];
  if (!is_floating(rate.dtype) || rate.numel() != 1) {
    return input_error("R: expected a float scalar, found {}", rate.text());
  }
  if (c.inputs[1].dtype != DType::kInt64 || c.inputs[1].numel() != 1) {
    return input_error("T: expected int64[], found {}", c.inputs[1].text());
  }
  const std::string mode = c.attributes.s("mode", "standard");
  if (mode == "standard" || mode == "nesterov") return {};
  return input_error("mode: expected standard or nesterov, found '{}'", mode);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c, size_t states) {
  const size_t operands = states + 2;
  OFSDP_RETURN_IF_ERROR(check_scalars(c, operands));
  const size_t tensors = (c.inputs.size() - 2) / operands;
  std::vector<TensorDesc> outputs;
  for (size_t i = 0; i < tensors * operands; ++i) {
    const TensorDesc& value = c.inputs[2 + i % tensors];
    const TensorDesc& found = c.inputs[2 + i];
    if (found.dtype != value.dtype || !(found.shape == value.shape)) {
      return input_error("input {}: expected {}, as input {} has, found {}", 2 + i, value.text(),
                         2 + i % tensors, found.text());
    }
  }
  for (size_t i = 0; i < tensors * (states + 1); ++i) outputs.push_back(c.inputs[2 + i % tensors]);
  return outputs;
}

Acceptance accepts(const Problem& p) {
  for (size_t i = 2; i < p.inputs.size(); ++i) {
    if (p.in(i).dtype != DType::kFloat32) return Acceptance::refuse(not_of_type<float>());
    if (p.in(i).layout != Layout::kPlain) return Acceptance::refuse(kNotPlain);
  }
  return accept_if(true, "");
}

std::unique_ptr<Kernel> create(const Problem& p, const TrainingUpdate& update) {
  const size_t operands = static_cast<size_t>(update.states) + 2;
  const size_t tensors = (p.inputs.size() - 2) / operands;
  const auto run = update.update;
  return make_kernel([attributes = training_attributes(p.attributes), operands, tensors,
                      run](const KernelArgs& a) {
    const double rate = double_at(a.inputs[0], 0), updates = double_at(a.inputs[1], 0);
    for (size_t k = 0; k < tensors; ++k) {
      parallel_for(a.inputs[2 + k].desc.numel(), kGrain, [&](int64_t begin, int64_t end) {
        std::array<const float*, kMaxOperands> in;
        std::array<float*, kMaxOperands> out;
        for (size_t i = 0; i < operands; ++i) in[i] = a.in<float>(2 + i * tensors + k) + begin;
        for (size_t i = 0; i + 1 < operands; ++i) out[i] = a.out<float>(i * tensors + k) + begin;
        run(attributes, {in.data(), out.data(), end - begin, rate, updates});
      });
    }
  });
}

template <void formula(const TrainingAttributes&, const TrainingSpan<double>&), size_t states>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  const size_t operands = states + 2;
  const size_t tensors = (c.inputs.size() - 2) / operands;
  std::vector<RefTensor> outputs;
  for (const TensorDesc& desc : c.output_descs) outputs.push_back(zeros(desc));
  for (size_t k = 0; k < tensors; ++k) {
    std::array<const double*, kMaxOperands> in;
    std::array<double*, kMaxOperands> out;
    for (size_t i = 0; i < operands; ++i) in[i] = c.inputs[2 + i * tensors + k].values.data();
    for (size_t i = 0; i + 1 < operands; ++i) out[i] = outputs[i * tensors + k].values.data();
    formula(training_attributes(c.attributes), {in.data(), out.data(), c.inputs[2 + k].desc.numel(),
                                                c.inputs[0].values[0], c.inputs[1].values[0]});
  }
  return outputs;
}

void add(Registry& registry, const TrainingUpdate& update) {
  const auto states = static_cast<size_t>(update.states);
  OpDef op{.domain = kTrainingDomain, .name = update.name, .min_inputs = update.states + 4};
  op.infer = [states](const InferContext& c) { return infer(c, states); };
  op.reference = update.reference;
  op.cpu = {{"loops", accepts, [update](const Problem& p) { return create(p, update); }}};
  registry.add(std::move(op));
}

// --- Adagrad ---

struct AdagradFactors {
  float norm, rate, epsilon;
};

OFSDP_MULTIARCH void adagrad_span(const float* __restrict x, const float* __restrict grad,
                                  const float* __restrict h, float* __restrict new_x,
                                  float* __restrict new_h, int64_t n, AdagradFactors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.norm * x[i] + grad[i];
    const float sum = h[i] + g * g;
    new_h[i] = sum;
    new_x[i] = x[i] - f.rate * g / (std::sqrt(sum) + f.epsilon);
  }
}

void adagrad_update(const TrainingAttributes& a, const TrainingSpan<float>& s) {
  const AdagradFactors f{static_cast<float>(a.norm),
                         static_cast<float>(s.rate / (1 + s.updates * a.decay)),
                         static_cast<float>(a.epsilon)};
  adagrad_span(s.in[0], s.in[1], s.in[2], s.out[0], s.out[1], s.count, f);
}

void adagrad_reference(const TrainingAttributes& a, const TrainingSpan<double>& s) {
  const double rate = s.rate / (1 + s.updates * a.decay);
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = a.norm * s.in[0][i] + s.in[1][i];
    s.out[1][i] = s.in[2][i] + g * g;
    s.out[0][i] = s.in[0][i] - rate * g / (std::sqrt(s.out[1][i]) + a.epsilon);
  }
}

// --- Adam ---

struct AdamFactors {
  float norm, keep, alpha, weight1, beta, weight2, rate, epsilon;
};

OFSDP_MULTIARCH void adam_span(const float* __restrict x, const float* __restrict grad,
                               const float* __restrict v, const float* __restrict h,
                               float* __restrict new_x, float* __restrict new_v,
                               float* __restrict new_h, int64_t n, AdamFactors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.norm * x[i] + grad[i];
    const float momentum = f.alpha * v[i] + f.weight1 * g;
    const float square = f.beta * h[i] + f.weight2 * (g * g);
    new_v[i] = momentum;
    new_h[i] = square;
    new_x[i] = f.keep * (x[i] - f.rate * momentum / (std::sqrt(square) + f.epsilon));
  }
}

double adjusted_rate(const TrainingAttributes& a, double rate, double updates) {
  if (updates <= 0) return rate;
  return rate * std::sqrt(1 - std::pow(a.beta, updates)) / (1 - std::pow(a.alpha, updates));
}

void adam_update(const TrainingAttributes& a, const TrainingSpan<float>& s) {
  const auto f32 = [](double value) { return static_cast<float>(value); };
  const AdamFactors f{f32(a.norm),
                      f32(1 - a.norm_post),
                      f32(a.alpha),
                      f32(1 - a.alpha),
                      f32(a.beta),
                      f32(1 - a.beta),
                      f32(adjusted_rate(a, s.rate, s.updates)),
                      f32(a.epsilon)};
  adam_span(s.in[0], s.in[1], s.in[2], s.in[3], s.out[0], s.out[1], s.out[2], s.count, f);
}

void adam_reference(const TrainingAttributes& a, const TrainingSpan<double>& s) {
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = a.norm * s.in[0][i] + s.in[1][i];
    s.out[1][i] = a.alpha * s.in[2][i] + (1 - a.alpha) * g;
    s.out[2][i] = a.beta * s.in[3][i] + (1 - a.beta) * g * g;
    const double root = std::sqrt(s.out[2][i]) + a.epsilon;
    const double x = s.in[0][i] - adjusted_rate(a, s.rate, s.updates) * s.out[1][i] / root;
    s.out[0][i] = (1 - a.norm_post) * x;
  }
}

// --- Momentum ---

struct MomentumFactors {
  float norm, alpha, beta, rate;
  bool nesterov;
};

OFSDP_MULTIARCH void momentum_span(const float* __restrict x, const float* __restrict grad,
                                   const float* __restrict v, float* __restrict new_x,
                                   float* __restrict new_v, int64_t n, MomentumFactors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = f.norm * x[i] + grad[i];
    const float momentum = f.alpha * v[i] + f.beta * g;
    new_v[i] = momentum;
    new_x[i] = x[i] - f.rate * (f.nesterov ? g + f.alpha * momentum : momentum);
  }
}

void momentum_update(const TrainingAttributes& a, const TrainingSpan<float>& s) {
  const MomentumFactors f{static_cast<float>(a.norm), static_cast<float>(a.alpha),
                          static_cast<float>(s.updates > 0 ? a.beta : 1),
                          static_cast<float>(s.rate), a.nesterov};
  momentum_span(s.in[0], s.in[1], s.in[2], s.out[0], s.out[1], s.count, f);
}

void momentum_reference(const TrainingAttributes& a, const TrainingSpan<double>& s) {
  for (int64_t i = 0; i < s.count; ++i) {
    const double g = a.norm * s.in[0][i] + s.in[1][i];
    const double v = a.alpha * s.in[2][i] + (s.updates > 0 ? a.beta : 1) * g;
    s.out[1][i] = v;
    s.out[0][i] = s.in[0][i] - s.rate * (a.nesterov ? g + a.alpha * v : v);
  }
}

}  // namespace training_update

void add_training_update(Registry& registry) {
  using namespace training_update;
  add(registry, {"Adagrad", 1, adagrad_update, reference<adagrad_reference, 1>});
  add(registry, {"Adam", 2, adam_update, reference<adam_reference, 2>});
  add(registry, {"Momentum", 1, momentum_update, reference<momentum_reference, 1>});
}

}  // namespace ofsdp::kernels::ops
