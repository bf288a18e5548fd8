#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/chain.h"
#include "kernels/cuda/pointwise/formulas.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Addresses {
  const T* x[kMostChainInputs];
  T* y[kMostChainResults];
};

__device__ inline float unary_step(ChainOp op, float a) {
  switch (op) {
    case ChainOp::kNeg:
      return -a;
    case ChainOp::kRelu:
      return relu_of(a);
    case ChainOp::kSigmoid:
      return sigmoid_of(a);
    case ChainOp::kTanh:
      return tanhf(a);
    case ChainOp::kExp:
      return expf(a);
    case ChainOp::kLog:
      return logf(a);
    case ChainOp::kSqrt:
      return sqrtf(a);
    case ChainOp::kReciprocal:
      return 1.0f / a;
    case ChainOp::kErf:
      return erff(a);
    case ChainOp::kSoftplus:
      return softplus_of(a);
    case ChainOp::kGelu:
      return gelu_of(a);
    default:
      return gelu_tanh_of(a);
  }
}

__device__ inline float binary_step(ChainOp op, float a, float b) {
  switch (op) {
    case ChainOp::kAdd:
      return a + b;
    case ChainOp::kSub:
      return a - b;
    case ChainOp::kMul:
      return a * b;
    case ChainOp::kDiv:
      return a / b;
    case ChainOp::kReluGrad:
      return relu_grad(a, b);
    case ChainOp::kSigmoidGrad:
      return sigmoid_grad(a, b);
    case ChainOp::kTanhGrad:
      return tanh_grad(a, b);
    case ChainOp::kErfGrad:
      return erf_grad(a, b);
    case ChainOp::kSoftplusGrad:
      return softplus_grad(a, b);
    case ChainOp::kGeluGrad:
      return a * gelu_slope(b);
    default:
      return a * gelu_tanh_slope(b);
  }
}

__device__ inline bool is_binary(ChainOp op) {
  return (op >= ChainOp::kAdd && op <= ChainOp::kDiv) || op >= ChainOp::kReluGrad;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) chain_kernel(ChainProgram p, Addresses<T> at) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.numel) return;
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
    return launch_blocks(stream, blocks_for(p.numel, kThreads), kThreads, chain_kernel<T>, p, at);
  });
}

}  // namespace ofsdp::kernels::cuda
