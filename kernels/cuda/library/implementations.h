// The list of CUDA implementations: a line for each file that has some. A file
// library/NAME_operators.cpp turns launchers of kernels/cuda/*.h (or calls of a library) into
// implementations:
//
//   void add_norms(std::vector<CudaImplementation>& list) {
//     list.push_back({"LayerNormalization", "own", accepts, create});
//   }
#pragma once

#include <vector>

#include "kernels/cuda/library/context.h"

namespace ofsdp::cuda {

const std::vector<CudaImplementation>& implementations();  // of one operator: best first

void add_products(std::vector<CudaImplementation>& list);

}  // namespace ofsdp::cuda
