#include "kernels/cuda/device/implementations.h"

#include <algorithm>

namespace ofsdp::kernels::cuda {
namespace {

bool writes_nothing(const Problem& p) {
  return std::ranges::all_of(
      p.outputs, [](const TensorDesc& out) { return !out.present() || out.numel() == 0; });
}

}  // namespace

const CudaImplementations& implementations() {
  static const CudaImplementations all = [] {
    CudaImplementations list;
#define FAMILY(name) add_##name(list);
#include "kernels/cuda/device/families.inc"
    return list;
  }();
  return all;
}

std::unique_ptr<CudaKernel> make_operator(DeviceState& device, const std::string& op,
                                          const Problem& problem, KernelChoice* choice) {
  for (const CudaImplementation& implementation : implementations()) {
    if (implementation.op != op) continue;
    const auto take = [&](std::unique_ptr<CudaKernel> kernel) {
      if (kernel != nullptr && choice != nullptr) choice->taken = implementation.name;
      return kernel;
    };
    if (writes_nothing(problem)) {
      return take(make_cuda_kernel([](cudaStream_t, const Launch&) { return cudaSuccess; }));
    }
    const Acceptance acceptance = implementation.accepts(problem);
    if (acceptance) {
      if (auto kernel = take(implementation.create(device, problem))) return kernel;
    }
    const char* const reason =
        acceptance ? "it has too many axes, or the library has no algorithm" : acceptance.reason();
    if (choice != nullptr) choice->refused.push_back({implementation.name, reason});
  }
  return nullptr;
}

}  // namespace ofsdp::kernels::cuda
