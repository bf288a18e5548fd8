// The update of one element, as kernels/optimizers/*.cpp have it, in the same order of operations. Products go through
// `times` (rounding.cuh), so each operation rounds as there.
#pragma once

#include <cmath>

#include "kernels/cuda/pointwise/rounding.cuh"
#include "kernels/cuda/training/update.h"

namespace ofsdp::kernels::cuda {

struct Factors {
  float minus_lr, lr, keep, weight_decay;
  float weight1, beta1, rest1, beta2, weight2, root_correction2, minus_step;
  float eps, momentum, rho, rest_rho;
  bool decays, far, first, nesterov, moves;
};

// In double and rounded once; `step` counts what was not skipped.
__device__ inline Factors factors_of(const OptimizerSettings& s, double weight_decay, double lr,
                                     int64_t step, bool bias_corrected) {
  const double t = static_cast<double>(step);
  Factors f;
  f.lr = static_cast<float>(lr);
  f.minus_lr = static_cast<float>(-lr);
  f.keep = static_cast<float>(1 - times(lr, weight_decay));
  f.weight_decay = static_cast<float>(weight_decay);
  f.weight1 = static_cast<float>(1 - s.beta1);
  f.beta1 = 1 - f.weight1;
  f.rest1 = static_cast<float>(s.beta1);
  f.beta2 = static_cast<float>(s.beta2);
  f.weight2 = static_cast<float>(1 - s.beta2);
  f.root_correction2 = bias_corrected ? static_cast<float>(sqrt(1 - pow(s.beta2, t))) : 1.0f;
  f.minus_step = bias_corrected ? static_cast<float>(-(lr / (1 - pow(s.beta1, t)))) : f.minus_lr;
  f.eps = static_cast<float>(s.eps);
  f.momentum = static_cast<float>(s.momentum);
  f.rho = static_cast<float>(s.rho);
  f.rest_rho = static_cast<float>(1 - s.rho);
  f.decays = weight_decay != 0;
  f.far = f.weight1 >= 0.5f;
  f.first = step == 1;
  f.nesterov = s.nesterov;
  f.moves = s.momentum != 0;
  return f;
}

// torch.lerp
__device__ inline float lerp(float start, float end, const Factors& f) {
  return f.far ? end - times(end - start, f.beta1) : start + times(f.weight1, end - start);
}

// Param p, gradient g, state tensors a and b of one element.
template <OptimizerKind kind>
__device__ inline void update_element(const Factors& f, float& p, float g, float& a, float& b) {
  constexpr bool kDecoupled = kind == OptimizerKind::kAdamW || kind == OptimizerKind::kLion;
  if (!kDecoupled && f.decays) g = g + times(f.weight_decay, p);
  if constexpr (kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam) {
    if (kDecoupled && f.decays) p = times(p, f.keep);
    a = lerp(a, g, f);
    b = times(b, f.beta2) + times(times(f.weight2, g), g);
    p = p + times(f.minus_step, a) / (sqrtf(b) / f.root_correction2 + f.eps);
  } else if constexpr (kind == OptimizerKind::kSgd) {
    if (f.moves) {
      a = f.first ? g : times(f.momentum, a) + g;
      g = f.nesterov ? g + times(f.momentum, a) : a;
    }
    p += times(f.minus_lr, g);
  } else if constexpr (kind == OptimizerKind::kAdadelta) {
    a = times(a, f.rho) + times(times(f.rest_rho, g), g);
    const float delta = times(sqrtf(b + f.eps) / sqrtf(a + f.eps), g);
    b = times(b, f.rho) + times(times(f.rest_rho, delta), delta);
    p += times(f.minus_lr, delta);
  } else if constexpr (kind == OptimizerKind::kAdagrad) {
    a = a + times(g, g);
    p += times(f.minus_lr, g) / (sqrtf(a) + f.eps);
  } else {
    const float c = times(f.rest1, a) + times(f.weight1, g);
    const float step = c > 0 ? f.lr : c < 0 ? -f.lr : 0.0f;
    p = times(p, f.keep) - step;
    a = times(f.beta2, a) + times(f.weight2, g);
  }
}

// runtime/engine/loss_scale.h, and torch.nn.utils.clip_grad_norm_ in float32.
__host__ __device__ inline void finish_norm_of(double sum, double clip_norm, bool scale_loss,
                                               UpdateState& s) {
  const double scale = scale_loss ? s.loss_scale : 1;
  s.global_norm = sqrt(sum) / scale;
  float factor = 1;
  if (clip_norm > 0) {
    factor = static_cast<float>(clip_norm) / (static_cast<float>(s.global_norm) + 1e-6f);
    factor = factor < 1.0f || factor != factor ? factor : 1.0f;
  }
  s.gradient_factor = factor / static_cast<float>(scale);
  s.skip = 0;
  if (!scale_loss) return;
  const double largest = 1.7976931348623157e308;
  if (!(s.global_norm <= largest)) {  // infinite or NaN
    s.skip = 1;
    s.loss_scale = s.loss_scale / 2 < 1 ? 1 : s.loss_scale / 2;
    s.good_updates = 0;
    ++s.skipped_updates;
  } else if (++s.good_updates == 2000) {
    s.loss_scale = s.loss_scale * 2 > 16777216.0 ? 16777216.0 : s.loss_scale * 2;
    s.good_updates = 0;
  }
}

}  // namespace ofsdp::kernels::cuda
