// Opens NVIDIA libraries at run time, so that this library loads without them: cuBLASLt (matrix
// products), cuDNN (attention, convolutions), NCCL (several ranks) and NVRTC (chains of elementwise
// operators). OFSDP_CUBLASLT_LIBRARY, OFSDP_CUDNN_LIBRARY, OFSDP_NCCL_LIBRARY and
// OFSDP_NVRTC_LIBRARY override the file.
//
// Each library is opened once per process and never closed. If it is missing or too old, it counts
// as absent.
#pragma once

#include <string>

namespace ofsdp::kernels::cuda {

enum class Nvidia { kCublasLt, kCudnn, kNccl, kNvrtc };

// Returns null if the library or the function is absent.
void* find_function(Nvidia library, const char* name);

template <typename Function>
Function* function_of(Nvidia library, const char* name) {
  return reinterpret_cast<Function*>(find_function(library, name));
}

// Returns a line for each absent library: name, reason and consequence.
std::string missing_libraries();
// Returns why the library is absent, or "".
std::string why_missing(Nvidia library);

// Machine code compiled by NVRTC, or the reason why there is none.
struct CompiledText {
  std::string code;  // cubin, or PTX if NVRTC is older than the GPU; empty on error
  std::string why;
};

// Compiles CUDA C++ for compute capability `capability` (90 for sm_90). Needs no GPU. On error
// `why` is set: NVRTC is absent, supports no architecture up to `capability`, or rejects the text
// (first line of its log).
CompiledText compile_text(const std::string& text, int capability);

}  // namespace ofsdp::kernels::cuda
