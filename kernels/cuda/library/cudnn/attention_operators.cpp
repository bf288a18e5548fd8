// Attention by cuDNN.
#include "kernels/cuda/library/cudnn/operators.h"

namespace ofsdp::cuda {

void add_cudnn_attention(CudaImplementations&) {}

}  // namespace ofsdp::cuda
