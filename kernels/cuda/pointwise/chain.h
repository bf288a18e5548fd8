// A chain of scalar operations over every element of its operands in one pass (kernels/core/chain.h
// has their meaning and kernels/ops/pointwise/chain.cpp the same for the CPU): forwards and, as a
// chain of its own, backwards.
//
// Every thread takes one element through all steps, which it reads from the arguments of the
// kernel, so nothing is compiled at run time; values between steps lie in its local memory.
// Operands and results of `dtype` (float32, float16, bfloat16; arithmetic in float32): of the
// output's `numel`, or repeated every `period` elements (1: a single one). A result may lie on an
// operand of its own size. Memory: each operand and result once; steps cost cached accesses.
#pragma once

#include "kernels/core/chain_op.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

inline constexpr int kMaxChainInputs = 12, kMaxChainSteps = 64, kMaxChainResults = 16;

struct ChainProgram {
  DType dtype = DType::kFloat32;
  int64_t numel = 0;
  int inputs = 0, steps = 0, results = 0;
  int64_t periods[kMaxChainInputs] = {};
  ChainOp ops[kMaxChainSteps] = {};
  uint8_t a[kMaxChainSteps] = {}, b[kMaxChainSteps] = {};  // values: inputs first, then steps
  float numbers[kMaxChainSteps] = {};
  uint8_t values[kMaxChainResults] = {};  // of the results
};

// x: `inputs` addresses; y: `results` addresses, null where one is not wanted.
cudaError_t chain(const ChainProgram& program, void* const* x, void* const* y, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
