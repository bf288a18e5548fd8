// Memory of the table: one cudaMalloc a region, all of them made before the first step.
#include "kernels/cuda/library/handles.h"

namespace ofsdp::cuda {
namespace {

void* allocate(ofsdp_device* device, size_t bytes) {
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, bytes);
  if (failed(device, error, "cudaMalloc") != 0) return nullptr;
  error = cudaMemset(data, 0, bytes);  // regions are zero-filled, as on the CPU
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (failed(device, error, "cudaMemset") == 0) return data;
  cudaFree(data);
  return nullptr;
}

void release(ofsdp_device*, void* data) { cudaFree(data); }

void* allocate_host(ofsdp_device* device, size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (failed(device, error, "cudaHostAlloc") != 0) return nullptr;
  __builtin_memset(data, 0, bytes);
  return data;
}

void release_host(ofsdp_device*, void* data) { cudaFreeHost(data); }

}  // namespace

void add_memory(ofsdp_device_table& table) {
  table.allocate = allocate;
  table.release = release;
  table.allocate_host = allocate_host;
  table.release_host = release_host;
}

}  // namespace ofsdp::cuda
