// A runtime only for kernels (../cuda_runtime_api.h): memory is the host's, a call's work is done
// when it returns, and there are no streams, events or graphs, nor functions for them.
#include <cstdlib>
#include <cstring>

#include "tests/emulator/cuda_runtime.h"

namespace emulator {

cudaError_t launch(const Launch& launch, std::function<void()> thread) {
  const dim3 block = launch.config.blockDim;
  OFSDP_EMULATOR_EXPECT(block.x * block.y * block.z <=
                        static_cast<unsigned>(most_threads(launch.kernel)));
  run({launch.config.gridDim, block, launch.kernel}, thread);
  return cudaSuccess;
}

}  // namespace emulator

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  ++emulator::launches();
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (bytes > 0) std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  ++emulator::launches();
  return cudaMemset(data, value, bytes);
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

}  // extern "C"
