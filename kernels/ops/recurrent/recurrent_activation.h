// The activations of gates, ONNX's list: applied in place to a row, and their derivatives. With a
// clip c the argument is bounded to -c .. c first; the derivative is 0 where that happened.
//
// Most derivatives follow from the result y, which is kept anyhow. A few attributes lose the
// argument, as LeakyRelu with an alpha of 0: those derivatives need x.
//
// Values; any thread.
#pragma once

#include <cstdint>
namespace ofsdp::kernels::ops {

struct GateActivation {
  enum class Kind {
    kSigmoid,
    kTanh,
    kRelu,
    kAffine,
    kLeakyRelu,
    kThresholdedRelu,
    kScaledTanh,
    kHardSigmoid,
    kElu,
    kSoftsign,
    kSoftplus
  };
  Kind kind = Kind::kTanh;
  float alpha = 0, beta = 0;
  float clip = 0;  // 0: none
};

// The definition, one value.
double reference_activation(const GateActivation& activation, double x);

// y[i] = f(y[i]), of float or double.
template <typename T>
void activate(const GateActivation& activation, T* y, int64_t n);

// Returns whether f'(x) depends on x beyond the result f(x).
inline bool slope_needs_argument(const GateActivation& a) {
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

// d[i] *= f'(x[i]) where y[i] = f(x[i]). Reads x only if slope_needs_argument, else y only.
template <typename T>
void activate_grad(const GateActivation& activation, const T* x, const T* y, T* d, int64_t n);

}  // namespace ofsdp::kernels::ops
