// Gate activations on the CPU.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/recurrent/recurrent_shape.h"

namespace ofsdp::kernels::ops {
namespace {

using Kind = GateActivation::Kind;

// M of kernels/formulas/gates.h.
struct GateMath {
  [[gnu::always_inline]] static inline float exp(float x) { return vector_exp(x); }
  static inline double exp(double x) { return std::exp(x); }
  [[gnu::always_inline]] static inline float tanh(float x) { return vector_tanh(x); }
  static inline double tanh(double x) { return std::tanh(x); }
  template <typename T>
  [[gnu::always_inline]] static inline T fabs(T x) {
    return x < T(0) ? -x : x;
  }
  template <typename T>
  static inline T expm1(T x) {
    return std::expm1(x);
  }
  template <typename T>
  static inline T log1p_exp(T x) {
    return std::log1p(std::exp(x));
  }
};

template <typename T, typename F>
[[gnu::always_inline]] inline void each(T* y, int64_t n, const F& f) {
  for (int64_t i = 0; i < n; ++i) y[i] = f(y[i]);
}

template <typename T, typename F>
[[gnu::always_inline]] inline void scale_each(const T* y, T* d, int64_t n, const F& slope) {
  for (int64_t i = 0; i < n; ++i) d[i] *= slope(y[i]);
}

}  // namespace

double reference_activation(const GateActivation& a, double x) {
  if (a.clip > 0) x = std::clamp(x, -double{a.clip}, double{a.clip});
  const double alpha = a.alpha, beta = a.beta;
  switch (a.kind) {
    case Kind::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Kind::kTanh:
      return std::tanh(x);
    case Kind::kRelu:
      return std::max(0.0, x);
    case Kind::kAffine:
      return alpha * x + beta;
    case Kind::kLeakyRelu:
      return x >= 0 ? x : alpha * x;
    case Kind::kThresholdedRelu:
      return x > alpha ? x : 0;
    case Kind::kScaledTanh:
      return alpha * std::tanh(beta * x);
    case Kind::kHardSigmoid:
      return std::clamp(alpha * x + beta, 0.0, 1.0);
    case Kind::kElu:
      return x >= 0 ? x : alpha * (std::exp(x) - 1);
    case Kind::kSoftsign:
      return x / (1 + std::abs(x));
    case Kind::kSoftplus:
      return std::log(1 + std::exp(x));
  }
  return 0;
}

template <typename T>
OFSDP_MULTIARCH void activate(const GateActivation& a, T* y, int64_t n) {
  using M = GateMath;
  const auto alpha = static_cast<T>(a.alpha), beta = static_cast<T>(a.beta);
  if (a.clip > 0) {
    const auto c = static_cast<T>(a.clip);
    each(y, n, [c](T x) { return clip_of(x, -c, c); });
  }
  switch (a.kind) {
#define OFSDP_GATE(name, value, slope) \
  case Kind::k##name:                  \
    return each(y, n, [=](T x) { return value; });
    OFSDP_GATES(OFSDP_GATE)
#undef OFSDP_GATE
  }
}

template <typename T>
OFSDP_MULTIARCH void argument_grad(const GateActivation& a, const T* x, T* d, int64_t n) {
  using M = GateMath;
  const auto alpha = static_cast<T>(a.alpha), clip = static_cast<T>(a.clip);
  if (a.clip > 0) {
    for (int64_t i = 0; i < n; ++i) d[i] = x[i] < -clip || x[i] > clip ? T{0} : d[i];
  }
  switch (a.kind) {
#define OFSDP_GATE(name, slope) \
  case Kind::k##name:           \
    return scale_each(x, d, n, [=](T x) { return slope; });
    OFSDP_GATES_OF_ARGUMENT(OFSDP_GATE)
#undef OFSDP_GATE
    default:
      return;  // slope_needs_argument is false
  }
}

template <typename T>
OFSDP_MULTIARCH void result_grad(const GateActivation& a, const T* y, T* d, int64_t n) {
  using M = GateMath;
  const auto alpha = static_cast<T>(a.alpha), beta = static_cast<T>(a.beta);
  if (a.clip > 0) {
    T ends[2] = {static_cast<T>(-a.clip), static_cast<T>(a.clip)};
    activate(a, ends, 2);
    const T low = std::min(ends[0], ends[1]), high = std::max(ends[0], ends[1]);
    for (int64_t i = 0; i < n; ++i) d[i] = y[i] <= low || y[i] >= high ? T{0} : d[i];
  }
  switch (a.kind) {
#define OFSDP_GATE(name, value, slope) \
  case Kind::k##name:                  \
    return scale_each(y, d, n, [=]([[maybe_unused]] T y) { return slope; });
    OFSDP_GATES(OFSDP_GATE)
#undef OFSDP_GATE
  }
}

template <typename T>
void activate_grad(const GateActivation& a, const T* x, const T* y, T* d, int64_t n) {
  if (slope_needs_argument(a)) return argument_grad(a, x, d, n);
  result_grad(a, y, d, n);
}

template void activate(const GateActivation&, float*, int64_t);
template void activate(const GateActivation&, double*, int64_t);
template void activate_grad(const GateActivation&, const float*, const float*, float*, int64_t);
template void activate_grad(const GateActivation&, const double*, const double*, double*, int64_t);

}  // namespace ofsdp::kernels::ops
