// The implementations made of the kernels in kernels/cuda/, by file.
#pragma once

#include <vector>

#include "kernels/cuda/library/context.h"

namespace ofsdp::cuda {

void add_own_pointwise(std::vector<CudaImplementation>& list);
void add_own_rows(std::vector<CudaImplementation>& list);

}  // namespace ofsdp::cuda
