// Memory of the table: one cudaMalloc a region, all of them made before the first step. What ranks
// reach is NCCL's to allocate, where it can, since it can open only such memory to others.
#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/handles.h"
#include "kernels/cuda/device/nccl.h"

namespace ofsdp::kernels::cuda {
namespace {

void release(ofsdp_device* device, void* data) {
  if (device->of_nccl.erase(data) > 0) {
    nccl().mem_free(data);
  } else {
    cudaFree(data);
  }
}

// Regions are zero-filled, as on the CPU.
void* cleared(ofsdp_device* device, void* data, size_t bytes) {
  cudaError_t error = cudaMemset(data, 0, bytes);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (failed(device, error, "cudaMemset") == 0) return data;
  release(device, data);
  return nullptr;
}

void* allocate(ofsdp_device* device, size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  return failed(device, error, "cudaMalloc") != 0 ? nullptr : cleared(device, data, bytes);
}

void* allocate_shared(ofsdp_device* device, size_t bytes) {
  const Nccl& n = nccl();
  if (n.mem_alloc == nullptr || n.mem_free == nullptr) return allocate(device, bytes);
  void* data = nullptr;
  if (n.mem_alloc(&data, bytes) != kNcclSuccess) {
    device->error = "ncclMemAlloc: no memory";
    return nullptr;
  }
  device->of_nccl.insert(data);
  return cleared(device, data, bytes);
}

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
  table.allocate_shared = allocate_shared;
  table.release = release;
  table.allocate_host = allocate_host;
  table.release_host = release_host;
}

}  // namespace ofsdp::kernels::cuda
