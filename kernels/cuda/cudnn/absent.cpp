// Replaces this folder if cuDNN's or cudnn-frontend's headers are missing.
#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {

void add_cudnn_convolutions(CudaImplementations&) {}
void add_cudnn_attention(CudaImplementations&) {}

}  // namespace ofsdp::kernels::cuda
