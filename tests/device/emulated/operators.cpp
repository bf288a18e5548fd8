// The operators of kernels/cuda for the counting device, on the CUDA of tests/emulator: the sources
// of libofsdp_cuda.so except for the matrix product (product.cpp).
#include <cstring>

#include "cuda_runtime.h"
#include "kernels/core/device.h"
#include "kernels/cuda/device/implementations.h"
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {
namespace {

class EmulatedKernel final : public Kernel {
 public:
  EmulatedKernel(CountingDevice& device, std::string op, std::unique_ptr<cuda::CudaKernel> kernel)
      : device_(device), op_(std::move(op)), kernel_(std::move(kernel)) {}
  size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

  Status run(const KernelArgs& args) override {
    std::vector<void*> inputs, outputs;
    for (const TensorView& view : args.inputs) inputs.push_back(view.data);
    for (const TensorView& view : args.outputs) outputs.push_back(view.data);
    const std::vector<std::byte> numbers = numbers_of(*args.step);
    const auto& step = static_cast<const DeviceStepContext&>(*args.step);
    const cuda::Launch launch{inputs,
                              outputs,
                              args.workspace,
                              reinterpret_cast<const ofsdp_step_numbers*>(numbers.data()),
                              static_cast<int64_t>(args.step->sample_index.size()),
                              step.fault,
                              step.node};
    const long before = emulator::launches();
    const cudaError_t error = kernel_->run(nullptr, launch);
    ++device_.counts["runs:" + op_];
    device_.counts["launches:" + op_] += emulator::launches() - before;
    return error == cudaSuccess ? Status{} : fault("CUDA error {}", static_cast<int>(error));
  }

 private:
  // ofsdp_step_numbers and the sample numbers after them.
  static std::vector<std::byte> numbers_of(const StepContext& step) {
    ofsdp_step_numbers head{};
    head.seed = step.seed;
    head.step = step.step;
    head.samples = static_cast<int64_t>(step.sample_index.size());
    std::vector<std::byte> bytes(sizeof(head) + step.sample_index.size_bytes());
    std::memcpy(bytes.data(), &head, sizeof(head));
    if (!step.sample_index.empty()) {
      std::memcpy(bytes.data() + sizeof(head), step.sample_index.data(),
                  step.sample_index.size_bytes());
    }
    return bytes;
  }

  CountingDevice& device_;
  std::string op_;
  std::unique_ptr<cuda::CudaKernel> kernel_;
};

}  // namespace

std::unique_ptr<Kernel> make_operator(CountingDevice& device, const std::string& op,
                                      const Problem& problem, KernelChoice* choice) {
  // CUDA kernels sum in another order.
  const bool sums = op.ends_with(".norms") || op.ends_with(".sums") || op.ends_with(".factors") ||
                    op.ends_with(".normalize");
  if (sums && op.starts_with("ofsdp.update.")) return make_cpu_update(device, op, problem);
  cuda::DeviceState state{.tf32 = device.tf32};
  auto kernel = cuda::make_operator(state, op, problem, choice);
  if (kernel == nullptr) return nullptr;
  return std::make_unique<EmulatedKernel>(device, op, std::move(kernel));
}

}  // namespace ofsdp::counting
