// The list of CUDA implementations: a line for each file that has some. A file
// library/NAME_operators.cpp turns launchers of kernels/cuda/*.h (or calls of a library) into
// implementations; what it adds is tested against the operators' references by
// tests/gpu/operators_test.cpp as soon as it is in the list.
//
//   void add_norms(std::vector<CudaImplementation>& list) {
//     list.push_back({"LayerNormalization", "own", accepts, create});
//   }
#pragma once

#include <vector>

#include "kernels/cuda/device/context.h"

namespace ofsdp::kernels::cuda {

using CudaImplementations = std::vector<CudaImplementation>;

const CudaImplementations& implementations();  // of one operator: best first

// The best implementation that accepts the problem, made; one that does nothing where there is
// nothing to write; null: there is none.
std::unique_ptr<CudaKernel> make_operator(ofsdp_device& device, const std::string& op,
                                          const Problem& problem);

void add_cudnn(CudaImplementations& list);  // before what it takes the place of
void add_products(CudaImplementations& list);
void add_pointwise(CudaImplementations& list);
void add_chains(CudaImplementations& list);
void add_movement(CudaImplementations& list);
void add_reductions(CudaImplementations& list);
void add_norms(CudaImplementations& list);
void add_batch_norm(CudaImplementations& list);
void add_softmax(CudaImplementations& list);
void add_losses(CudaImplementations& list);
void add_dropout(CudaImplementations& list);
void add_gathers(CudaImplementations& list);
void add_attention(CudaImplementations& list);
void add_rotary(CudaImplementations& list);
void add_pools(CudaImplementations& list);
void add_convolutions(CudaImplementations& list);
void add_scatters(CudaImplementations& list);
void add_triangles(CudaImplementations& list);
void add_top_k(CudaImplementations& list);
void add_group_norm(CudaImplementations& list);
void add_axis_maps(CudaImplementations& list);
void add_recurrent(CudaImplementations& list);
void add_folds(CudaImplementations& list);
void add_einsum(CudaImplementations& list);
void add_conv_transpose(CudaImplementations& list);
void add_random(CudaImplementations& list);
void add_found(CudaImplementations& list);
void add_sequences(CudaImplementations& list);
void add_unpools(CudaImplementations& list);
void add_lp_pools(CudaImplementations& list);
void add_training(CudaImplementations& list);

}  // namespace ofsdp::kernels::cuda
