// Activations of RNN, GRU and LSTM gates (ONNX's list) and their derivatives: one table for CPU
// loops and CUDA kernels.
//
// A gate returns y = f(x); if clip > 0, x is clamped to [-clip, clip] first, and the derivative is
// 0 if that changed x. Derivatives follow from y, which is saved anyway, but for some alphas of
// LeakyRelu, Elu and ThresholdedRelu from x (slope_needs_argument).
//
// Formulas follow kernels/formulas/activation.h where these agree with ONNX's text for RNN; Elu and
// Softplus do not. M also has log1p_exp(x) = ln(1 + e^x).
#pragma once

#include "kernels/formulas/activation.h"

namespace ofsdp::kernels {

template <typename M, typename T>
OFSDP_HD T gate_elu_of(T x, T alpha) {
  const T below = alpha * (M::exp(x) - T(1));  // unconditional: gcc vectorizes it
  return x < T(0) ? below : x;
}
template <typename M, typename T>
OFSDP_HD T gate_elu_slope(T x, T alpha) {
  const T below = alpha * M::exp(x);
  return x > T(0) ? T(1) : below;
}

// GATE(kind, f(x), f'(x) as a function of y); T is float or double.
#define OFSDP_GATES(GATE)                                                                 \
  GATE(Sigmoid, sigmoid_of<M>(x), (y * (T(1) - y)))                                       \
  GATE(Tanh, M::tanh(x), T(1) - y * y)                                                    \
  GATE(Relu, relu_of(x), y > T(0) ? T(1) : T(0))                                          \
  GATE(Affine, (alpha * x + beta), alpha)                                                 \
  GATE(LeakyRelu, leaky_relu_of(x, alpha), y > T(0) ? T(1) : alpha)                       \
  GATE(ThresholdedRelu, thresholded_relu_of(x, alpha), y != T(0) ? T(1) : T(0))           \
  GATE(ScaledTanh, (alpha * M::tanh(beta * x)),                                           \
       alpha == T(0) ? T(0) : beta * (alpha - y * (y / alpha)))                           \
  GATE(HardSigmoid, hard_sigmoid_of(x, alpha, beta), y > T(0) && y < T(1) ? alpha : T(0)) \
  GATE(Elu, gate_elu_of<M>(x, alpha), y > T(0) ? T(1) : y + alpha)                        \
  GATE(Softsign, softsign_of<M>(x), (T(1) - M::fabs(y)) * (T(1) - M::fabs(y)))            \
  GATE(Softplus, x > T(0) ? x + M::log1p_exp(-x) : M::log1p_exp(x), -M::expm1(-y))

// GATE(kind, f'(x) as a function of x), for the kinds that may need it.
#define OFSDP_GATES_OF_ARGUMENT(GATE)            \
  GATE(LeakyRelu, x > T(0) ? T(1) : alpha)       \
  GATE(ThresholdedRelu, x > alpha ? T(1) : T(0)) \
  GATE(Elu, gate_elu_slope<M>(x, alpha))

struct GateActivation {
  enum class Kind {
#define OFSDP_GATE_KIND(name, ...) k##name,
    OFSDP_GATES(OFSDP_GATE_KIND)
#undef OFSDP_GATE_KIND
  };
  Kind kind = Kind::kTanh;
  float alpha = 0, beta = 0;
  float clip = 0;  // 0: none
};

OFSDP_HD bool slope_needs_argument(const GateActivation& a) {
  switch (a.kind) {
    case GateActivation::Kind::kLeakyRelu:
    case GateActivation::Kind::kElu:
      return a.alpha <= 0;
    case GateActivation::Kind::kThresholdedRelu:
      return a.alpha < 0;
    default:
      return false;
  }
}

}  // namespace ofsdp::kernels
