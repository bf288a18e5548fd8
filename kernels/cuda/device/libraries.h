// The NVIDIA libraries that this one opens by name, so that it loads without them: cuBLASLt for
// matrix products, cuDNN for attention and convolutions, NCCL for several ranks, NVRTC for chains
// of elementwise operators. Each is taken from a version on. OFSDP_CUBLASLT_LIBRARY, _CUDNN_,
// _NCCL_ and _NVRTC_ name another file.
//
// Ownership: opened once a process and never closed. Threads: any, after the first call. Errors: a
// library that is missing or too old is absent; `missing_libraries` says which, why, and what is
// slower or impossible without it, a line each.
#pragma once

#include <string>

namespace ofsdp::kernels::cuda {

enum class Nvidia { kCublasLt, kCudnn, kNccl, kNvrtc };

// A function of the library, or null where the library or the function is absent.
void* find_function(Nvidia library, const char* name);

template <typename Function>
Function* function_of(Nvidia library, const char* name) {
  return reinterpret_cast<Function*>(find_function(library, name));
}

std::string missing_libraries();
// "" where it is there.
std::string why_missing(Nvidia library);

}  // namespace ofsdp::kernels::cuda
