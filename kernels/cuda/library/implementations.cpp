#include "kernels/cuda/library/implementations.h"

#include "kernels/cuda/library/own_operators.h"

namespace ofsdp::cuda {

const std::vector<CudaImplementation>& implementations() {
  static const std::vector<CudaImplementation> all = [] {
    std::vector<CudaImplementation> list;
    add_products(list);
    add_own_pointwise(list);
    add_own_rows(list);
    return list;
  }();
  return all;
}

}  // namespace ofsdp::cuda
