// Tells whether there is oneDNN, for the choice of kernels. Folders named onednn/ call the library;
// in a build without it CMake compiles the folders named without_onednn/ instead, with kernels that
// refuse every problem or use OpenBLAS.
#pragma once

namespace ofsdp::kernels::onednn {

bool is_present();  // the build has the library
bool has_avx512();  // and it may use AVX-512 here: ONEDNN_MAX_CPU_ISA

// Why an implementation refuses a problem.
inline constexpr const char* kNoOneDnn = "this build has no oneDNN";

}  // namespace ofsdp::kernels::onednn
