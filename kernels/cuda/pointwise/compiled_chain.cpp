#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/libraries.h"
#include "kernels/cuda/pointwise/chain.h"

namespace ofsdp::kernels::cuda {
namespace {

// Driver functions; the CUDA runtime has already loaded the library.
struct Driver {
  decltype(&cuModuleLoadData) load = nullptr;
  decltype(&cuModuleGetFunction) function = nullptr;
  decltype(&cuLaunchKernel) launch = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    load = reinterpret_cast<decltype(load)>(dlsym(library, "cuModuleLoadData"));
    function = reinterpret_cast<decltype(function)>(dlsym(library, "cuModuleGetFunction"));
    launch = reinterpret_cast<decltype(launch)>(dlsym(library, "cuLaunchKernel"));
  }
  bool is_complete() const { return load != nullptr && function != nullptr && launch != nullptr; }
};

const Driver& driver() {
  static const Driver made;
  return made;
}

struct Functions {
  CUfunction wide = nullptr, single = nullptr;  // nullptr: it does not compile
};

// Loads both functions at once, since nothing may be loaded while a stream is captured.
Functions load(const DeviceState& device, const std::string& text) {
  use_device(device.ordinal);
  // cudaFree makes the device's context current.
  if (!driver().is_complete() || cudaFree(nullptr) != cudaSuccess) return {};
  const CompiledText compiled = compile_text(text, device.capability);
  CUmodule module = nullptr;
  if (compiled.code.empty() || driver().load(&module, compiled.code.data()) != CUDA_SUCCESS) {
    return {};
  }
  Functions made;
  if (driver().function(&made.wide, module, "chain_wide") != CUDA_SUCCESS ||
      driver().function(&made.single, module, "chain_single") != CUDA_SUCCESS) {
    return {};
  }
  return made;
}

Functions functions_of(const DeviceState& device, const std::string& text) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, Functions> known;
  const std::scoped_lock lock(mutex);
  const std::pair key{device.ordinal, text};
  const auto it = known.find(key);
  return it != known.end() ? it->second : known.emplace(key, load(device, text)).first->second;
}

constexpr int64_t kMaxBlocks = int64_t{1} << 30;

}  // namespace

CompiledChain compile_chain(DeviceState& device, const ChainProgram& program,
                            const std::vector<bool>& wanted) {
  const Functions functions = functions_of(device, chain_source(program, wanted));
  if (functions.wide == nullptr || functions.single == nullptr) return {};
  return [=](void* const* x, void* const* y, cudaStream_t stream) {
    ChainArguments arguments;
    std::copy_n(x, program.inputs, arguments.x);
    std::copy_n(y, program.results, arguments.y);
    std::copy_n(program.periods, program.inputs, arguments.periods);
    arguments.numel = program.numel;
    const bool wide = can_run_wide(program, arguments);
    const int64_t pack = wide ? 16 / static_cast<int64_t>(dtype_size(program.dtype)) : 1;
    const int64_t threads = (program.numel + pack - 1) / pack;
    const int64_t blocks = (threads + kChainThreads - 1) / kChainThreads;
    if (blocks > kMaxBlocks) return cudaErrorNotSupported;
    void* parameters[] = {&arguments};
    const CUresult result =
        driver().launch(wide ? functions.wide : functions.single, static_cast<unsigned>(blocks), 1,
                        1, kChainThreads, 1, 1, 0, stream, parameters, nullptr);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure;
  };
}

}  // namespace ofsdp::kernels::cuda
