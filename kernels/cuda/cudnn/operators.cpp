#include "kernels/cuda/cudnn/operators.h"

namespace ofsdp::kernels::cuda {

void add_cudnn(CudaImplementations& list) {
  add_cudnn_convolutions(list);
  add_cudnn_attention(list);
}

}  // namespace ofsdp::kernels::cuda
