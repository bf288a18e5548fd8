#include "kernels/cpu/blas.h"

namespace ofsdp::kernels {

const char* blas_core_to_name() { return nullptr; }

}  // namespace ofsdp::kernels
