// The list of CUDA implementations. A file FAMILY/NAME_operators.cpp turns launchers (or calls of a
// library) into implementations, a row each:
//
//   void add_norms(CudaImplementations& list) {
//     list.insert(list.end(), {{"LayerNormalization", "own", accepts, create}});
//   }
//
// tests/gpu/operators_test.cpp compares each row with its operator's reference.
#pragma once

#include <vector>

#include "kernels/core/kernel_choice.h"
#include "kernels/cuda/device/context.h"

namespace ofsdp::kernels::cuda {

using CudaImplementations = std::vector<CudaImplementation>;

const CudaImplementations& implementations();  // of one operator: best first

// The best implementation that accepts the problem, made; one that does nothing where there is
// nothing to write; null: there is none.
std::unique_ptr<CudaKernel> make_operator(DeviceState& device, const std::string& op,
                                          const Problem& problem, KernelChoice* choice = nullptr);

#define FAMILY(name) void add_##name(CudaImplementations& list);
#include "kernels/cuda/device/families.inc"

}  // namespace ofsdp::kernels::cuda
