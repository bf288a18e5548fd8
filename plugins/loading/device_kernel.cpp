#include "plugins/loading/device_kernel.h"

namespace ofsdp::plugins {
namespace {

class DevicePluginKernel final : public Kernel {
 public:
  DevicePluginKernel(std::unique_ptr<PluginKernel> kernel, void* stream)
      : kernel_(std::move(kernel)), stream_(stream) {}

  size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

  Status run(const KernelArgs& args) override {
    const StepContext step{args.step->seed, -1, {}};
    return kernel_->put({args.inputs, args.outputs, args.workspace, &step}, stream_);
  }

 private:
  std::unique_ptr<PluginKernel> kernel_;
  void* stream_;
};

}  // namespace

bool plugin_takes(const OpDef& op, const Problem& problem) {
  return of_plugin(op) && op.cpu[0].accepts(problem);
}

std::unique_ptr<Kernel> make_plugin_kernel(Device& device, const OpDef& op,
                                           const Problem& problem) {
  // A plug-in's implementation makes no other kernel.
  std::unique_ptr<PluginKernel> kernel(
      static_cast<PluginKernel*>(op.cpu[0].create(problem).release()));
  if (!kernel->on_devices()) return nullptr;
  return std::make_unique<DevicePluginKernel>(std::move(kernel), device.native_compute());
}

}  // namespace ofsdp::plugins
