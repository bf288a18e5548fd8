// CUDA C++ text into code for one kind of GPU, by NVRTC (libraries.h opens it; it needs no GPU).
//
// Ownership: values. Threads: one at a time. Errors: `code` is empty, and `why` says why: NVRTC is
// absent, knows neither the GPU nor an older one, or does not accept the text (its first line).
#pragma once

#include <string>

namespace ofsdp::kernels::cuda {

struct CompiledText {
  std::string code;  // a cubin, or PTX where NVRTC is older than the GPU
  std::string why;
};

// capability: 90 for sm_90.
CompiledText compile_text(const std::string& text, int capability);

}  // namespace ofsdp::kernels::cuda
