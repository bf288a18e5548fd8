// CudaKernel: an operator for one problem, as this library makes it; CudaImplementation: how.
//
// A kernel's `run` launches on the stream and returns; it neither waits nor allocates, and is legal
// while the stream is captured. Threads: one a device. Errors: `run` returns what the launch said.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/core/kernel.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// The addresses of one call, in the order of the problem's operands.
struct Launch {
  std::span<void*const> inputs, outputs;
  void* workspace = nullptr;
  const ofsdp_step_numbers* numbers = nullptr;  // device memory
  int64_t samples = 0;                          // of the micro-batch: known when launched
  ofsdp_data_fault* record = nullptr;           // device memory; or null
  uint64_t node = 0;                            // the node's number in `record`, from 1 on

  // Null where the operand is absent.
  template <typename T = void>
  T* in(size_t i) const {
    return i < inputs.size() ? static_cast<T*>(inputs[i]) : nullptr;
  }
  template <typename T = void>
  T* out(size_t i) const {
    return i < outputs.size() ? static_cast<T*>(outputs[i]) : nullptr;
  }
  Fault fault() const { return {record, node}; }  // where a launcher notes data out of range
};

class CudaKernel {
 public:
  virtual ~CudaKernel() = default;
  virtual size_t workspace_bytes() const { return 0; }
  virtual cudaError_t run(cudaStream_t stream, const Launch& launch) = 0;
};

struct CudaImplementation {
  std::string op;    // "Relu", "ofsdp.ReluGrad"
  const char* name;  // "cublaslt", "own"
  std::function<Acceptance(const Problem&)> accepts;
  // Null: not after all, for instance because a library has no algorithm.
  std::function<std::unique_ptr<CudaKernel>(DeviceState&, const Problem&)> create;
  bool takes_pitch = false;  // else it is not asked about operands with a TensorDesc::pitch
};

// A kernel from a callable `cudaError_t(cudaStream_t, const Launch&)`, which may change what it has
// captured.
template <typename F>
std::unique_ptr<CudaKernel> make_cuda_kernel(F function, size_t workspace_bytes = 0) {
  class FunctionKernel final : public CudaKernel {
   public:
    FunctionKernel(F function, size_t bytes) : function_(std::move(function)), bytes_(bytes) {}
    size_t workspace_bytes() const override { return bytes_; }
    cudaError_t run(cudaStream_t stream, const Launch& launch) override {
      return function_(stream, launch);
    }

   private:
    F function_;
    size_t bytes_;
  };
  return std::make_unique<FunctionKernel>(std::move(function), workspace_bytes);
}

}  // namespace ofsdp::kernels::cuda
