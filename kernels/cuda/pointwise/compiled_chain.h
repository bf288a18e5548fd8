// CompiledChain: a chain compiled by NVRTC while planning, loaded by the driver and launched on a
// stream, captured or not; what it computes is kernels/cuda/pointwise/chain.h's. 16-byte accesses where
// addresses allow and operands repeat in multiples of them.
//
// Ownership: code is kept by device and text for the process; running allocates nothing. Threads: one
// a device. Errors: null where NVRTC is absent or the driver does not take the code: the interpreter
// then runs.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/pointwise/chain.h"

namespace ofsdp::kernels::cuda {

class CompiledChain {
 public:
  virtual ~CompiledChain() = default;
  // As chain().
  virtual cudaError_t run(void* const* x, void* const* y, cudaStream_t stream) = 0;
};

std::unique_ptr<CompiledChain> compile_chain(DeviceState& device, const ChainProgram& program,
                                             const std::vector<bool>& wanted);

}  // namespace ofsdp::kernels::cuda
