#include "kernels/cpu/products.h"

namespace ofsdp::kernels {

const char* blas_core_to_name() { return nullptr; }

}  // namespace ofsdp::kernels
