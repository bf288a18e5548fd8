// The list of CUDA implementations. A file FAMILY/NAME_operators.cpp turns launchers (or calls of a library)
// into implementations, a row each:
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

// A function add_NAME of each, in FAMILY/NAME_operators.cpp; cuDNN's come before what they take the place of.
#define OFSDP_CUDA_FAMILIES(X)                                                                \
  X(cudnn_convolutions)                                                                       \
  X(cudnn_attention)                                                                          \
  X(products)                                                                                 \
  X(pointwise)                                                                                \
  X(chains)                                                                                   \
  X(movement) X(reductions) X(norms) X(losses) X(random) X(gathers) X(attention) X(rotary)    \
      X(pools) X(convolutions) X(selections) X(axis_maps) X(recurrent) X(recurrent_gradients) \
          X(einsum) X(training)
#define OFSDP_DECLARE_FAMILY(name) void add_##name(CudaImplementations& list);
OFSDP_CUDA_FAMILIES(OFSDP_DECLARE_FAMILY)
#undef OFSDP_DECLARE_FAMILY

}  // namespace ofsdp::kernels::cuda
