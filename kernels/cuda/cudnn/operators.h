// The implementations by cuDNN, of which each file has some; `add_cudnn` (implementations.h) adds all.
// Ownership: the list's. Threads: any, once. Errors: none.
#pragma once

#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {

void add_cudnn_convolutions(CudaImplementations& list);
void add_cudnn_attention(CudaImplementations& list);

}  // namespace ofsdp::kernels::cuda
