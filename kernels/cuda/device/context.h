// CudaKernel: an operator for one problem, as this library makes it; CudaImplementation: how.
//
// Ownership: as the table says. Threads: one a device. Errors: `run` returns what the launch said.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/core/kernel.h"
#include "kernels/cuda/device/handles.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// An operator for one problem. `run` launches on the stream and returns; it neither waits nor
// allocates, and is legal while the stream is captured.
class CudaKernel {
 public:
  virtual ~CudaKernel() = default;
  virtual size_t workspace_bytes() const { return 0; }
  virtual cudaError_t run(cudaStream_t stream, const ofsdp_launch& launch) = 0;
};

// Where a launcher notes data out of range.
inline Fault fault_of(const ofsdp_launch& launch) { return {launch.fault, launch.node}; }

struct CudaImplementation {
  std::string op;    // "Relu", "ofsdp.ReluGrad"
  const char* name;  // "cublaslt", "own"
  std::function<bool(const Problem&)> accepts;
  // Null: not after all.
  std::function<std::unique_ptr<CudaKernel>(ofsdp_device&, const Problem&)> create;
};

// A kernel from a callable `cudaError_t(cudaStream_t, const ofsdp_launch&)`.
template <typename F>
std::unique_ptr<CudaKernel> make_cuda_kernel(F function, size_t workspace_bytes = 0) {
  class FunctionKernel final : public CudaKernel {
   public:
    FunctionKernel(F function, size_t bytes) : function_(std::move(function)), bytes_(bytes) {}
    size_t workspace_bytes() const override { return bytes_; }
    cudaError_t run(cudaStream_t stream, const ofsdp_launch& launch) override {
      return function_(stream, launch);
    }

   private:
    F function_;
    size_t bytes_;
  };
  return std::make_unique<FunctionKernel>(std::move(function), workspace_bytes);
}

}  // namespace ofsdp::kernels::cuda
