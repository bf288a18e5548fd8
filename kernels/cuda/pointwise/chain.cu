// Interprets a chain: a thread computes one element through all steps. The switch is uniform over
// the kernel, so memory traffic dominates. Used if NVRTC is absent.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/chain.h"
#include "kernels/cuda/pointwise/formulas.cuh"

namespace ofsdp::kernels::cuda {
namespace {

template <typename T>
struct Addresses {
  const T* x[kMaxChainInputs];
  T* y[kMaxChainResults];
};

__device__ inline float formula_of(ChainOp op, float a, float b) {
  switch (op) {
#define OFSDP_FORMULA(name, expression) OFSDP_CASE(ChainOp::k##name, expression);
    OFSDP_CHAIN_FORMULAS(OFSDP_FORMULA)
#undef OFSDP_FORMULA
    default:
      return 0;
  }
}

// A thread per element; `values` (local memory) holds the inputs, then each step's result.
template <typename T>
OFSDP_CUDA_KERNEL chain_kernel(ChainProgram p, Addresses<T> at) {
  OFSDP_CUDA_ITEM(i, p.numel);
  float values[kMaxChainInputs + kMaxChainSteps];
  for (int k = 0; k < p.inputs; ++k) {
    const int64_t period = p.periods[k];
    values[k] = to_float(at.x[k][period == p.numel ? i : period == 1 ? 0 : i % period]);
  }
  for (int s = 0; s < p.steps; ++s) {
    const ChainOp op = p.ops[s];
    const float a = values[p.a[s]];
    values[p.inputs + s] = op == ChainOp::kNumber  ? p.numbers[s]
                           : op == ChainOp::kRound ? to_float(Stored<T>::from(a))
                                                   : formula_of(op, a, values[p.b[s]]);
  }
  for (int k = 0; k < p.results; ++k) {
    if (at.y[k] != nullptr) at.y[k][i] = Stored<T>::from(values[p.values[k]]);
  }
}

}  // namespace

cudaError_t chain(const ChainProgram& p, void* const* x, void* const* y, cudaStream_t stream) {
  return with_float(p.dtype, [&]<typename T>(T) {
    Addresses<T> at{};
    for (int k = 0; k < p.inputs; ++k) at.x[k] = static_cast<const T*>(x[k]);
    for (int k = 0; k < p.results; ++k) at.y[k] = static_cast<T*>(y[k]);
    return over(p.numel, stream, chain_kernel<T>, p, at);
  });
}

}  // namespace ofsdp::kernels::cuda
