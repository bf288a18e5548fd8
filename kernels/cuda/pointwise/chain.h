// Chains on CUDA. A chain is a list of scalar operations that runs for each element, so that
// several elementwise operators need one pass over memory; a chain's gradient is another chain.
// kernels/core/chain.h defines chains, kernels/ops/pointwise/chain.cpp runs them on the CPU. Here
// NVRTC, CUDA's run-time compiler, compiles generated code for each chain. If NVRTC is absent, one
// precompiled kernel interprets all chains.
//
// All operands and results have one dtype: float32, float16 or bfloat16. Operations compute in
// float32, and only results are rounded to the dtype. Each operand and result is read or written
// once. A result may alias an operand of the same size.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/core/chain_op.h"
#include "kernels/core/kernel.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// FORMULA(name, expression): the operation ChainOp::kNAME on float32 operands a and b. The
// interpreter compiles the expression; generated code contains its text. The functions are in
// formulas.cuh. Gradients take (gradient, y) for Relu, Sigmoid and Tanh, else (gradient, x).
// Parentheses keep clang-format from taking `a * b` for a pointer's declaration.
//
// To add an operation, add a row here and in kernels/core/chain_op.h. Two have no row, since they
// are no function of float32 values: ChainOp::kNumber, a constant, and ChainOp::kRound.
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

// A chain for one problem size, as arrays that fit a kernel's arguments. Its values are numbered:
// first the inputs, then one value per step.
struct ChainProgram {
  DType dtype = DType::kFloat32;
  int64_t numel = 0;  // elements per result
  int inputs = 0, steps = 0, results = 0;
  // Elements per input; element i of a result reads input element i % period. numel: a whole
  // operand; 1: a scalar; otherwise the operand repeats along leading axes.
  int64_t periods[kMaxChainInputs] = {};
  ChainOp ops[kMaxChainSteps] = {};
  uint8_t a[kMaxChainSteps] = {}, b[kMaxChainSteps] = {};  // per step: its operands' value numbers
  float numbers[kMaxChainSteps] = {};                      // per step: the constant of a kNumber
  uint8_t values[kMaxChainResults] = {};                   // per result: its value number
};

// Converts an ofsdp.Chain node's attributes. REQUIRES: they parse, and the node has an output.
ChainProgram chain_program(const Problem& problem);

// Interprets the chain: each thread computes one element. It reads the steps from the kernel's
// arguments and keeps the values in local memory. x: `inputs` device addresses; y: `results` device
// addresses, nullptr for results that nobody needs. Returns the launch's error.
cudaError_t chain(const ChainProgram& program, void* const* x, void* const* y, cudaStream_t stream);

// --- Generated CUDA C++: one statement per step, so that values stay in registers.
//
//   chain_body     two kernels on ChainArguments: a thread of NAME_wide computes 16 bytes of each
//                  result, a thread of NAME_single one element. They need chain_source's prelude:
//                  Element, to_float, of_float, float_of_bits and OFSDP_KERNEL
//   chain_source   the whole text for NVRTC: prelude and body; it includes no header
//
// The text depends on the dtype, the steps, the wanted results, on which operands are whole,
// repeated or scalar, and on whether numel fits int32, but not on sizes. So chains with equal texts
// share one compiled program.

struct ChainArguments {  // as in ChainProgram; y: nullptr for results that nobody needs
  const void* x[kMaxChainInputs] = {};
  void* y[kMaxChainResults] = {};
  long long periods[kMaxChainInputs] = {};
  long long numel = 0;
};

inline constexpr int kChainThreads = 256;  // per block

// Returns whether NAME_wide may run: addresses are multiples of 16, and the period of each repeated
// operand is a multiple of 16 bytes.
bool can_run_wide(const ChainProgram& program, const ChainArguments& arguments);

// `wanted`: one flag per result; false: nothing computes or stores it.
std::string chain_body(const ChainProgram& program, const std::vector<bool>& wanted,
                       const std::string& name);
std::string chain_source(const ChainProgram& program, const std::vector<bool>& wanted);

// --- Compiled chains.
//
// A CompiledChain launches the generated kernels on a stream, which may be captured into a graph; x
// and y as in `chain`. It picks NAME_wide if can_run_wide, allocates nothing, and returns the
// launch's error. compile_chain caches the compiled code per device and text until the process
// ends. It returns an empty function if NVRTC is absent or the driver rejects the code; callers
// then use `chain`. REQUIRES: only one thread uses a device.

using CompiledChain = std::function<cudaError_t(void* const* x, void* const* y, cudaStream_t)>;

CompiledChain compile_chain(DeviceState& device, const ChainProgram& program,
                            const std::vector<bool>& wanted);

}  // namespace ofsdp::kernels::cuda
