// A chain (kernels/core/chain.h) as CUDA C++: what kernels/cuda/pointwise/chain.h interprets,
// written out, so that values between steps stay in registers and steps cost no reads.
//
//   chain_program  the description of a problem, as the interpreter takes it
//   chain_body     two kernels, NAME_wide and NAME_single, of one ChainArguments: 16 bytes of each
//                  operand a thread, and one element. They need what chain_source puts in front:
//                  Element, to_float, of_float, float_of_bits and OFSDP_KERNEL, here NVRTC's
//   chain_source   all of the text that NVRTC takes; it includes nothing
//
// The text depends on the type, the steps, the results that are wanted and on which operands are
// whole, repeated or single, not on sizes: so it is the key under which what it compiles to is
// kept.
//
// Errors: none.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cuda/pointwise/chain.h"

namespace ofsdp::kernels::cuda {

struct ChainArguments {
  const void* x[kMaxChainInputs] = {};
  void* y[kMaxChainResults] = {};
  long long periods[kMaxChainInputs] = {};
  long long numel = 0;
};

inline constexpr int kChainThreads = 256;

ChainProgram chain_program(const Problem& problem);

// Whether NAME_wide may run: addresses are multiples of 16, and what is repeated repeats in whole
// accesses of 16 bytes. Results that are not wanted are null.
bool chain_goes_wide(const ChainProgram& program, const ChainArguments& arguments);

// wanted: a result each.
std::string chain_body(const ChainProgram& program, const std::vector<bool>& wanted,
                       const std::string& name);
std::string chain_source(const ChainProgram& program, const std::vector<bool>& wanted);

}  // namespace ofsdp::kernels::cuda
