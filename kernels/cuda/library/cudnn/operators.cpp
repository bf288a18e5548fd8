#include "kernels/cuda/library/cudnn/operators.h"

namespace ofsdp::cuda {

void add_cudnn(CudaImplementations& list) {
  add_cudnn_convolutions(list);
  add_cudnn_attention(list);
}

}  // namespace ofsdp::cuda
