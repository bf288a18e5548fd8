// The registry of CUDA operators: how an operator becomes a kernel for one problem. A file
// FAMILY/NAME_operators.cpp turns launchers or library calls into implementations, one row each:
//
//   void add_norms(CudaImplementations& list) {
//     list.insert(list.end(), {{"LayerNormalization", "own", accepts, create}});
//   }
//
// tests/gpu/operators_test.cpp compares each row with the operator's reference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// Facts about the GPU and options of the run; operators read them on creation. Owned by the device;
// one thread at a time.
struct DeviceState {
  int ordinal = 0;
  int multiprocessors = 0;
  int capability = 0;                   // compute capability: 90 for sm_90
  size_t bytes = 0;                     // device memory
  bool tf32 = false, may_vary = false;  // for operators created from now on (Device::allow)
  uint64_t identity = 0;                // UUID hash
  std::string name = {};
  std::shared_ptr<void> cudnn = {};  // cudnnHandle_t, created on first use
};

void use_device(int ordinal);  // Selects the device for this thread.

// Operand addresses for one call, in the order of the problem's operands.
struct Launch {
  std::span<void*const> inputs, outputs;
  void* workspace = nullptr;
  const ofsdp_step_numbers* numbers = nullptr;  // device memory
  int64_t samples = 0;                          // in the micro-batch; known at launch
  ofsdp_data_fault* record = nullptr;           // device memory, or null
  uint64_t node = 0;                            // number of the node in `record`, counted from 1

  // Returns null if the operand is absent.
  template <typename T = void>
  T* in(size_t i) const {
    return i < inputs.size() ? static_cast<T*>(inputs[i]) : nullptr;
  }
  template <typename T = void>
  T* out(size_t i) const {
    return i < outputs.size() ? static_cast<T*>(outputs[i]) : nullptr;
  }
  Fault fault() const { return {record, node}; }  // for launchers that check data
};

// An operator for one problem. `run` launches on the stream and returns the launch error; it
// neither waits nor allocates, so it can be captured.
class CudaKernel {
 public:
  virtual ~CudaKernel() = default;
  virtual size_t workspace_bytes() const { return 0; }
  virtual cudaError_t run(cudaStream_t stream, const Launch& launch) = 0;
};

// One way to run an operator.
struct CudaImplementation {
  std::string op;    // "Relu", "ofsdp.ReluGrad"
  const char* name;  // "cublaslt", "own"
  std::function<Acceptance(const Problem&)> accepts;
  // May return null even for accepted problems, for instance if a library has no algorithm.
  std::function<std::unique_ptr<CudaKernel>(DeviceState&, const Problem&)> create;
  // If false, problems with a TensorDesc::pitch are refused without asking `accepts`.
  bool takes_pitch = false;
};

// Makes a kernel from a callable `cudaError_t(cudaStream_t, const Launch&)`. The callable may
// modify its captures.
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

using CudaImplementations = std::vector<CudaImplementation>;

const CudaImplementations& implementations();  // for each operator, best first

// Returns the first implementation that accepts the problem and creates a kernel, or null. If all
// outputs are absent or empty, the kernel does nothing. Stores the choice and the refusals in
// `choice` unless it is null.
std::unique_ptr<CudaKernel> make_operator(DeviceState& device, const std::string& op,
                                          const Problem& problem, KernelChoice* choice = nullptr);

// Operator families; add_NAME registers each. cuDNN comes before the kernels that it replaces.
#define OFSDP_CUDA_FAMILIES(FAMILY) \
  FAMILY(cudnn_convolutions)        \
  FAMILY(cudnn_attention)           \
  FAMILY(products)                  \
  FAMILY(stored_products)           \
  FAMILY(pointwise)                 \
  FAMILY(bias_split_gelu)           \
  FAMILY(fake_quantize)             \
  FAMILY(chains)                    \
  FAMILY(movement)                  \
  FAMILY(reductions)                \
  FAMILY(norms)                     \
  FAMILY(losses)                    \
  FAMILY(linear_losses)             \
  FAMILY(contrastive)               \
  FAMILY(random)                    \
  FAMILY(gathers)                   \
  FAMILY(attention)                 \
  FAMILY(rotary)                    \
  FAMILY(pools)                     \
  FAMILY(convolutions)              \
  FAMILY(selections)                \
  FAMILY(axis_maps)                 \
  FAMILY(recurrent)                 \
  FAMILY(einsum)                    \
  FAMILY(samples)                   \
  FAMILY(transforms)                \
  FAMILY(sequences)                 \
  FAMILY(training)                  \
  FAMILY(updates)

#define OFSDP_CUDA_FAMILY(name) void add_##name(CudaImplementations& list);
OFSDP_CUDA_FAMILIES(OFSDP_CUDA_FAMILY)
#undef OFSDP_CUDA_FAMILY

}  // namespace ofsdp::kernels::cuda
