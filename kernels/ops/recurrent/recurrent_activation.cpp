// Gate activations on the CPU.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/recurrent/recurrent_shape.h"

namespace ofsdp::kernels::ops {
namespace {

using Kind = GateActivation::Kind;

[[gnu::always_inline]] inline float exp_of(float x) { return vector_exp(x); }
inline double exp_of(double x) { return std::exp(x); }
[[gnu::always_inline]] inline float tanh_of(float x) { return vector_tanh(x); }
inline double tanh_of(double x) { return std::tanh(x); }

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
  const auto alpha = static_cast<T>(a.alpha), beta = static_cast<T>(a.beta);
  if (a.clip > 0) {
    const auto c = static_cast<T>(a.clip);
    each(y, n, [c](T x) { return x > c ? c : (x < -c ? -c : x); });
  }
  switch (a.kind) {
    case Kind::kSigmoid:
      return each(y, n, [](T x) { return T{1} / (T{1} + exp_of(-x)); });
    case Kind::kTanh:
      return each(y, n, [](T x) { return tanh_of(x); });
    case Kind::kRelu:
      return each(y, n, [](T x) { return x < T{0} ? T{0} : x; });
    case Kind::kAffine:
      return each(y, n, [=](T x) { return alpha * x + beta; });
    case Kind::kLeakyRelu:
      return each(y, n, [=](T x) { return x < T{0} ? alpha * x : x; });
    case Kind::kThresholdedRelu:
      return each(y, n, [=](T x) { return x > alpha ? x : T{0}; });
    case Kind::kScaledTanh:
      return each(y, n, [=](T x) { return alpha * tanh_of(beta * x); });
    case Kind::kHardSigmoid:
      return each(y, n, [=](T x) {
        const T v = alpha * x + beta;
        return v < T{0} ? T{0} : (v > T{1} ? T{1} : v);
      });
    case Kind::kElu:
      return each(y, n, [=](T x) {
        const T v = alpha * (exp_of(x) - T{1});
        return x < T{0} ? v : x;
      });
    case Kind::kSoftsign:
      return each(y, n, [](T x) { return x / (T{1} + (x < T{0} ? -x : x)); });
    case Kind::kSoftplus:
      return each(y, n, [](T x) {
        return x > T{0} ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
      });
  }
}

template <typename T>
OFSDP_MULTIARCH void argument_grad(const GateActivation& a, const T* x, T* d, int64_t n) {
  const auto alpha = static_cast<T>(a.alpha), clip = static_cast<T>(a.clip);
  if (a.clip > 0) {
    for (int64_t i = 0; i < n; ++i) d[i] = x[i] < -clip || x[i] > clip ? T{0} : d[i];
  }
  switch (a.kind) {
    case Kind::kLeakyRelu:
      return scale_each(x, d, n, [=](T v) { return v > T{0} ? T{1} : alpha; });
    case Kind::kElu:
      return scale_each(x, d, n, [=](T v) {
        const T slope = alpha * exp_of(v);
        return v > T{0} ? T{1} : slope;
      });
    default:  // kThresholdedRelu
      return scale_each(x, d, n, [=](T v) { return v > alpha ? T{1} : T{0}; });
  }
}

template <typename T>
OFSDP_MULTIARCH void result_grad(const GateActivation& a, const T* y, T* d, int64_t n) {
  const auto alpha = static_cast<T>(a.alpha), beta = static_cast<T>(a.beta);
  if (a.clip > 0) {
    T ends[2] = {static_cast<T>(-a.clip), static_cast<T>(a.clip)};
    activate(a, ends, 2);
    const T low = std::min(ends[0], ends[1]), high = std::max(ends[0], ends[1]);
    for (int64_t i = 0; i < n; ++i) d[i] = y[i] <= low || y[i] >= high ? T{0} : d[i];
  }
  switch (a.kind) {
    case Kind::kSigmoid:
      return scale_each(y, d, n, [](T v) { return v * (T{1} - v); });
    case Kind::kTanh:
      return scale_each(y, d, n, [](T v) { return T{1} - v * v; });
    case Kind::kRelu:
      return scale_each(y, d, n, [](T v) { return v > T{0} ? T{1} : T{0}; });
    case Kind::kAffine:
      return scale_each(y, d, n, [=](T) { return alpha; });
    case Kind::kLeakyRelu:
      return scale_each(y, d, n, [=](T v) { return v > T{0} ? T{1} : alpha; });
    case Kind::kThresholdedRelu:
      return scale_each(y, d, n, [](T v) { return v != T{0} ? T{1} : T{0}; });
    case Kind::kScaledTanh:
      return scale_each(
          y, d, n, [=](T v) { return alpha == T{0} ? T{0} : beta * (alpha - v * (v / alpha)); });
    case Kind::kHardSigmoid:
      return scale_each(y, d, n, [=](T v) { return v > T{0} && v < T{1} ? alpha : T{0}; });
    case Kind::kElu:
      return scale_each(y, d, n, [=](T v) { return v > T{0} ? T{1} : v + alpha; });
    case Kind::kSoftsign:
      return scale_each(y, d, n, [](T v) {
        const T rest = T{1} - (v < T{0} ? -v : v);
        return rest * rest;
      });
    case Kind::kSoftplus:
      return scale_each(y, d, n, [](T v) { return -std::expm1(-v); });
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
