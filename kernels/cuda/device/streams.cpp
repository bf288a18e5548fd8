#include "kernels/cuda/device/streams.h"

#include <chrono>

namespace ofsdp::kernels::cuda {
namespace {

constexpr std::chrono::microseconds kAsking{50};

}  // namespace

Status checked(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // otherwise the next call would return it
  return base::fault("{}: {}", call, cudaGetErrorString(error));
}

cudaError_t wait_for_event(cudaEvent_t event) {
  const auto until = std::chrono::steady_clock::now() + kAsking;
  do {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) return error;
    cudaGetLastError();  // otherwise the next call would return it
  } while (std::chrono::steady_clock::now() < until);
  return cudaEventSynchronize(event);
}

Result<cudaGraphExec_t> end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  OFSDP_RETURN_IF_ERROR(checked(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaError_t error =
      cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  if (error == cudaSuccess) error = cudaGraphUpload(executable, stream);
  OFSDP_RETURN_IF_ERROR(checked(error, "cudaGraphInstantiate"));
  return executable;
}

}  // namespace ofsdp::kernels::cuda
