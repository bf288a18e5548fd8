// Formulas of one element that operators (pointwise_math.cuh) and chains share; kernels/ops/NAME.cpp has the same ones.
// This text is also given to NVRTC (library/chain_source.h), without its preprocessor lines: so nothing here needs a header
// but for functions of <cmath>.
#pragma once

#include <cmath>

namespace ofsdp::kernels::cuda {

template <typename T>
__host__ __device__ inline T relu_of(T x) {  // NaN stays
  return x < T(0) ? T(0) : x;
}
template <typename T>
__host__ __device__ inline T sigmoid_of(T x) {
  return T(1) / (T(1) + std::exp(-x));
}
template <typename T>
__host__ __device__ inline T softplus_of(T x) {
  return (x < T(0) ? T(0) : x) + std::log1p(std::exp(-std::fabs(x)));
}
template <typename T>
__host__ __device__ inline T gelu_of(T x) {
  return T(0.5) * x * (T(1) + std::erf(x * T(0.70710678118654752440)));
}
template <typename T>
__host__ __device__ inline T gelu_slope(T x) {
  const T below = T(0.5) * (T(1) + std::erf(x * T(0.70710678118654752440)));
  return below + x * (T(0.39894228040143267794) * std::exp(T(-0.5) * x * x));
}
template <typename T>
__host__ __device__ inline T gelu_tanh_power(T x) {
  return std::exp(T(-1.59576912160573071175) * x * (T(1) + T(0.044715) * x * x));
}
template <typename T>
__host__ __device__ inline T gelu_tanh_of(T x) {
  return x / (T(1) + gelu_tanh_power(x));
}
template <typename T>
__host__ __device__ inline T gelu_tanh_slope(T x) {
  T v = x > T(12) ? T(12) : x;
  v = v < T(-12) ? T(-12) : v;
  const T s = T(1) / (T(1) + gelu_tanh_power(v));
  return s + v * s * (T(1) - s) * (T(1.59576912160573071175) * (T(1) + T(0.134145) * v * v));
}

// Gradients: of d and the result (relu, sigmoid, tanh) or the operand.
template <typename T>
__host__ __device__ inline T relu_grad(T d, T y) {
  return y > T(0) ? d : T(0);
}
template <typename T>
__host__ __device__ inline T sigmoid_grad(T d, T y) {
  return d * y * (T(1) - y);
}
template <typename T>
__host__ __device__ inline T tanh_grad(T d, T y) {
  return d * (T(1) - y * y);
}
template <typename T>
__host__ __device__ inline T erf_grad(T d, T x) {
  return d * (T(1.12837916709551257390) * std::exp(-x * x));
}
template <typename T>
__host__ __device__ inline T softplus_grad(T d, T x) {
  return d * sigmoid_of(x);
}

}  // namespace ofsdp::kernels::cuda
