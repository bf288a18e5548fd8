// See cuda_runtime_api.h.
#include <cstdlib>

#include "tests/fake_cuda/cuda_runtime_api.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fake_cuda {

Asked& asked() {
  static Asked all;
  return all;
}

}  // namespace fake_cuda

using fake_cuda::asked;

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void*, int, size_t) { return cudaSuccess; }
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) {
  if (asked().event_fails) return cudaErrorLaunchFailure;
  return asked().early_queries-- > 0 ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  ++asked().waits;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  ++asked().graphs;
  *graph = reinterpret_cast<cudaGraph_t>(&asked());
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t, unsigned long long flags) {
  if (asked().refuses_to_instantiate) return cudaErrorInvalidValue;
  asked().instantiated_with = flags;
  *made = reinterpret_cast<cudaGraphExec_t>(&asked());
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  ++asked().uploads;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) {
  --asked().graphs;
  return cudaSuccess;
}

}  // extern "C"
