#include <cstdlib>

#include "kernels/cpu/blas.h"

namespace ofsdp::kernels {

// [Note: OpenBLAS's core] OpenBLAS knows Intel's processors by their numbers, and takes one that is
// newer than itself for a Prescott, without AVX: a fifth of the rate on an Emerald Rapids with
// 0.3.21. Instructions decide instead. AMD's are known by their instructions already.
const char* blas_core_to_name() {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || !__builtin_cpu_is("intel")) return nullptr;
  if (__builtin_cpu_supports("x86-64-v4")) return "SkylakeX";
  return __builtin_cpu_supports("x86-64-v3") ? "Haswell" : nullptr;
}

}  // namespace ofsdp::kernels
