#include <cstdlib>

#include "kernels/cpu/products.h"

namespace ofsdp::kernels {

// [Note: OpenBLAS's core] OpenBLAS knows Intel's processors by number and takes one newer than
// itself for a Prescott, without AVX: a fifth of the rate on an Emerald Rapids with 0.3.21. So
// instructions decide. OpenBLAS knows AMD's processors by their instructions already.
const char* blas_core_to_name() {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || !__builtin_cpu_is("intel")) return nullptr;
  if (__builtin_cpu_supports("x86-64-v4")) return "SkylakeX";
  return __builtin_cpu_supports("x86-64-v3") ? "Haswell" : nullptr;
}

}  // namespace ofsdp::kernels
