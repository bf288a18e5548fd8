// Launches of the emulator's kernels on the runtime that checks the rules.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "tests/emulator/cuda_runtime.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace emulator {
namespace {

// "libchecked_cuda.so+0x1234", for addr2line: kernels are in unnamed namespaces.
std::string name_of(const void* kernel) {
  Dl_info info{};
  if (dladdr(kernel, &info) == 0 || info.dli_fname == nullptr) return "of no library";
  const char* slash = std::strrchr(info.dli_fname, '/');
  char offset[32];
  const auto at = static_cast<const char*>(kernel) - static_cast<const char*>(info.dli_fbase);
  std::snprintf(offset, sizeof(offset), "+0x%zx", static_cast<size_t>(at));
  return std::string(slash != nullptr ? slash + 1 : info.dli_fname) + offset;
}

}  // namespace

cudaError_t launch(const Launch& given, std::function<void()> thread) {
  fake_cuda::Launch launch{given.config, name_of(given.kernel), most_threads(given.kernel),
                           given.parameters};
  return fake_cuda::launch(
      launch, [shape = LaunchShape{given.config.gridDim, given.config.blockDim, given.kernel},
               thread = std::move(thread)] { run(shape, thread); });
}

}  // namespace emulator
