#include "runtime/engine/device/device_optimizer.h"

namespace ofsdp::runtime {

DeviceOptimizer make_device_optimizer(Device& device, const std::string& name,
                                      const OptimizerSettings& s) {
  const ofsdp_optimizer_settings settings{
      s.momentum, s.beta1, s.beta2, s.eps, s.rho, s.nesterov ? 1 : 0, s.bias_correction ? 0 : 1};
  return DeviceOptimizer(device.make_optimizer(name.c_str(), settings), {&device});
}

}  // namespace ofsdp::runtime
