// The interpreter of chains: every thread takes the same branch of the switch at each step, so it
// costs little more than the memory traffic. It runs where NVRTC, which compiles chains, is
// absent.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/chain.h"
#include "kernels/cuda/pointwise/formulas.cuh"

namespace ofsdp::kernels::cuda {
namespace {

template <typename T>
struct Addresses {
  const T* x[kMostChainInputs];
  T* y[kMostChainResults];
};

__device__ inline float unary_step(ChainOp op, float a) {
  switch (op) {
    OFSDP_CASE(ChainOp::kNeg, -a);
    OFSDP_CASE(ChainOp::kRelu, relu_of(a));
    OFSDP_CASE(ChainOp::kSigmoid, sigmoid_of<DeviceMath>(a));
    OFSDP_CASE(ChainOp::kTanh, tanhf(a));
    OFSDP_CASE(ChainOp::kExp, expf(a));
    OFSDP_CASE(ChainOp::kLog, logf(a));
    OFSDP_CASE(ChainOp::kSqrt, sqrtf(a));
    OFSDP_CASE(ChainOp::kReciprocal, 1.0f / a);
    OFSDP_CASE(ChainOp::kErf, erff(a));
    OFSDP_CASE(ChainOp::kSoftplus, softplus_of<DeviceMath>(a));
    OFSDP_CASE(ChainOp::kGelu, gelu_of<DeviceMath>(a));
    default:
      return gelu_tanh_of<DeviceMath>(a);
  }
}

__device__ inline float binary_step(ChainOp op, float a, float b) {
  switch (op) {
    OFSDP_CASE(ChainOp::kAdd, a + b);
    OFSDP_CASE(ChainOp::kSub, a - b);
    OFSDP_CASE(ChainOp::kMul, a * b);
    OFSDP_CASE(ChainOp::kDiv, a / b);
    OFSDP_CASE(ChainOp::kReluGrad, relu_grad(a, b));
    OFSDP_CASE(ChainOp::kSigmoidGrad, sigmoid_grad(a, b));
    OFSDP_CASE(ChainOp::kTanhGrad, tanh_grad(a, b));
    OFSDP_CASE(ChainOp::kErfGrad, erf_grad<DeviceMath>(a, b));
    OFSDP_CASE(ChainOp::kSoftplusGrad, softplus_grad<DeviceMath>(a, b));
    OFSDP_CASE(ChainOp::kGeluGrad, a * gelu_slope<DeviceMath>(b));
    default:
      return a * gelu_tanh_slope<DeviceMath>(b);
  }
}

__device__ inline bool is_binary(ChainOp op) {
  return (op >= ChainOp::kAdd && op <= ChainOp::kDiv) || op >= ChainOp::kReluGrad;
}

template <typename T>
OFSDP_CUDA_KERNEL chain_kernel(ChainProgram p, Addresses<T> at) {
  OFSDP_CUDA_ITEM(i, p.numel);
  float values[kMostChainInputs + kMostChainSteps];
  for (int k = 0; k < p.inputs; ++k) {
    const int64_t period = p.periods[k];
    values[k] = to_float(at.x[k][period == p.numel ? i : period == 1 ? 0 : i % period]);
  }
  for (int s = 0; s < p.steps; ++s) {
    const ChainOp op = p.ops[s];
    float made = p.numbers[s];
    if (is_binary(op)) {
      made = binary_step(op, values[p.a[s]], values[p.b[s]]);
    } else if (op != ChainOp::kNumber) {
      made = unary_step(op, values[p.a[s]]);
    }
    values[p.inputs + s] = made;
  }
  for (int k = 0; k < p.results; ++k) {
    if (at.y[k] != nullptr) at.y[k][i] = Stored<T>::from(values[p.values[k]]);
  }
}

}  // namespace

cudaError_t chain(const ChainProgram& p, void* const* x, void* const* y, cudaStream_t stream) {
  return with_float(p.dtype, [&](auto t) {
    using T = decltype(t);
    Addresses<T> at{};
    for (int k = 0; k < p.inputs; ++k) at.x[k] = static_cast<const T*>(x[k]);
    for (int k = 0; k < p.results; ++k) at.y[k] = static_cast<T*>(y[k]);
    return over(p.numel, stream, chain_kernel<T>, p, at);
  });
}

}  // namespace ofsdp::kernels::cuda
