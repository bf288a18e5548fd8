// A chain: scalar operations fused into one pass over the elements, forward, or backward as a chain
// of its own. kernels/core/chain.h defines chains, kernels/ops/pointwise/chain.cpp runs them on the
// CPU. Here NVRTC compiles them, or a kernel interprets them if NVRTC is absent.
//
// Operands and results are float32, float16 or bfloat16; arithmetic is float32. An operand has
// `numel` elements or repeats every `period` (1: a scalar). A result may alias an operand of the
// same size. Each operand and result crosses memory once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/core/chain_op.h"
#include "kernels/core/kernel.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// FORMULA(name, expression): a chain operation on operands a and b, as code for the interpreter and
// as text for NVRTC.
#define OFSDP_CHAIN_FORMULAS(FORMULA)                    \
  FORMULA(Add, a + b)                                    \
  FORMULA(Sub, a - b)                                    \
  FORMULA(Mul, (a * b))                                  \
  FORMULA(Div, a / b)                                    \
  FORMULA(Neg, -a)                                       \
  FORMULA(Relu, relu_of(a))                              \
  FORMULA(Sigmoid, sigmoid_of<DeviceMath>(a))            \
  FORMULA(Tanh, DeviceMath::tanh(a))                     \
  FORMULA(Exp, DeviceMath::exp(a))                       \
  FORMULA(Log, DeviceMath::log(a))                       \
  FORMULA(Sqrt, DeviceMath::sqrt(a))                     \
  FORMULA(Reciprocal, 1.0f / a)                          \
  FORMULA(Erf, DeviceMath::erf(a))                       \
  FORMULA(Softplus, softplus_of<DeviceMath>(a))          \
  FORMULA(Gelu, gelu_of<DeviceMath>(a))                  \
  FORMULA(GeluTanh, gelu_tanh_of<DeviceMath>(a))         \
  FORMULA(ReluGrad, relu_grad(a, b))                     \
  FORMULA(SigmoidGrad, sigmoid_grad(a, b))               \
  FORMULA(TanhGrad, tanh_grad(a, b))                     \
  FORMULA(ErfGrad, erf_grad<DeviceMath>(a, b))           \
  FORMULA(SoftplusGrad, softplus_grad<DeviceMath>(a, b)) \
  FORMULA(GeluGrad, (a * gelu_slope<DeviceMath>(b)))     \
  FORMULA(GeluTanhGrad, (a * gelu_tanh_slope<DeviceMath>(b)))

inline constexpr int kMaxChainInputs = 12, kMaxChainSteps = 64, kMaxChainResults = 16;

struct ChainProgram {
  DType dtype = DType::kFloat32;
  int64_t numel = 0;
  int inputs = 0, steps = 0, results = 0;
  int64_t periods[kMaxChainInputs] = {};
  ChainOp ops[kMaxChainSteps] = {};
  uint8_t a[kMaxChainSteps] = {}, b[kMaxChainSteps] = {};  // values: inputs first, then steps
  float numbers[kMaxChainSteps] = {};
  uint8_t values[kMaxChainResults] = {};  // the value index of each result
};

ChainProgram chain_program(const Problem& problem);

// Interprets the chain: a thread reads the steps from the kernel's arguments and keeps values in
// local memory. x: `inputs` addresses; y: `results` addresses, nullptr for results not wanted.
cudaError_t chain(const ChainProgram& program, void* const* x, void* const* y, cudaStream_t stream);

// --- Generated CUDA C++, with values in registers and steps in the code.
//
//   chain_body     two kernels on ChainArguments: NAME_wide with 16 bytes of each operand per
//                  thread, NAME_single with one element. They need chain_source's prelude: Element,
//                  to_float, of_float, float_of_bits and OFSDP_KERNEL
//   chain_source   the whole text for NVRTC; it includes no header
//
// The text depends on the dtype, the steps, the wanted results and on which operands are whole,
// repeated or scalar, but not on sizes: it serves as the cache key of compiled chains.

struct ChainArguments {
  const void* x[kMaxChainInputs] = {};
  void* y[kMaxChainResults] = {};
  long long periods[kMaxChainInputs] = {};
  long long numel = 0;
};

inline constexpr int kChainThreads = 256;

// Returns whether NAME_wide may run: addresses are multiples of 16, and repeated operands repeat in
// whole 16-byte packs. Results not wanted are nullptr.
bool can_run_wide(const ChainProgram& program, const ChainArguments& arguments);

// wanted: a flag per result.
std::string chain_body(const ChainProgram& program, const std::vector<bool>& wanted,
                       const std::string& name);
std::string chain_source(const ChainProgram& program, const std::vector<bool>& wanted);

// --- Compiled chains.
//
// A CompiledChain launches the generated kernels on a stream, captured or not; accesses are 16
// bytes wide if addresses and periods allow. compile_chain caches code per device and text until
// the process ends; a launch allocates nothing. One thread per device. Empty if NVRTC is absent or
// the driver rejects the code; the caller then interprets.

using CompiledChain = std::function<cudaError_t(void* const* x, void* const* y, cudaStream_t)>;

CompiledChain compile_chain(DeviceState& device, const ChainProgram& program,
                            const std::vector<bool>& wanted);

}  // namespace ofsdp::kernels::cuda
