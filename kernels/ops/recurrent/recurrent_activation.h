// The activations of gates, ONNX's list: applied in place to a row, and their derivatives written
// with the result y, which is all that is kept. With a clip c the argument is bounded to -c .. c
// first; the derivative is 0 where that happened.
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

// d[i] *= f'(x) where f(x) = y[i]
template <typename T>
void activate_grad(const GateActivation& activation, const T* y, T* d, int64_t n);

}  // namespace ofsdp::kernels::ops
