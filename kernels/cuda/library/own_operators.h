// The implementations made of the kernels in kernels/cuda/, by file. Where these kernels are not
// there, CMake takes no_own_operators.cpp in place of the files.
#pragma once

#include <vector>

#include "kernels/cuda/library/context.h"

namespace ofsdp::cuda {

void add_own_pointwise(std::vector<CudaImplementation>& list);
void add_own_rows(std::vector<CudaImplementation>& list);

}  // namespace ofsdp::cuda
