#include "kernels/cuda/library/implementations.h"

namespace ofsdp::cuda {

const std::vector<CudaImplementation>& implementations() {
  static const std::vector<CudaImplementation> all = [] {
    std::vector<CudaImplementation> list;
    return list;
  }();
  return all;
}

}  // namespace ofsdp::cuda
