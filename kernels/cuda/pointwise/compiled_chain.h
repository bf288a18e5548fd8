// CompiledChain: a chain compiled by NVRTC while planning, loaded by the driver and launched on a
// stream, captured or not. It computes what chain() of kernels/cuda/pointwise/chain.h does, with
// the same operands, in 16-byte accesses where addresses allow and operands repeat in multiples of
// them.
//
// Ownership: code is kept by device and text for the process; running allocates nothing. Threads:
// one a device. Errors: empty where NVRTC is absent or the driver does not take the code: the
// interpreter then runs.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/pointwise/chain.h"

namespace ofsdp::kernels::cuda {

using CompiledChain = std::function<cudaError_t(void* const* x, void* const* y, cudaStream_t)>;

CompiledChain compile_chain(DeviceState& device, const ChainProgram& program,
                            const std::vector<bool>& wanted);

}  // namespace ofsdp::kernels::cuda
