#include "kernels/cuda/device/event_wait.h"

#include <chrono>

namespace ofsdp::kernels::cuda {
namespace {

constexpr std::chrono::microseconds kAsking{50};

}  // namespace

cudaError_t wait_for_event(cudaEvent_t event) {
  const auto until = std::chrono::steady_clock::now() + kAsking;
  do {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) return error;
    cudaGetLastError();  // so that the next call does not find it
  } while (std::chrono::steady_clock::now() < until);
  return cudaEventSynchronize(event);
}

}  // namespace ofsdp::kernels::cuda
