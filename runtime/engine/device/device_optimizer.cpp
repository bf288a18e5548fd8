#include "runtime/engine/device/device_optimizer.h"

namespace ofsdp::runtime {

DeviceOptimizer make_device_optimizer(Device& device, const std::string& name,
                                      const OptimizerSettings& s) {
  const ofsdp_optimizer_settings settings{
      s.momentum, s.beta1, s.beta2, s.eps, s.rho, s.nesterov ? 1 : 0, s.bias_correction ? 0 : 1};
  ofsdp_device_optimizer* made =
      device.table().make_optimizer(device.handle(), name.c_str(), &settings);
  return DeviceOptimizer(made, {&device});
}

}  // namespace ofsdp::runtime
