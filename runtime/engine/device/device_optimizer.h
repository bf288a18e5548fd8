// An optimizer of a device, by its name: one pass over a stretch of a shard (`update` of the
// table).
//
// Ownership: the device outlives it. Threads: one. Errors: null where the device has none of that
// name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/optimizer.h"

namespace ofsdp::runtime {

struct DeviceOptimizerDrop {
  Device* device = nullptr;
  void operator()(ofsdp_device_optimizer* optimizer) const { device->drop_optimizer(optimizer); }
};
using DeviceOptimizer = std::unique_ptr<ofsdp_device_optimizer, DeviceOptimizerDrop>;

using DeviceOptimizers = std::vector<DeviceOptimizer>;

inline DeviceOptimizer make_device_optimizer(Device& device, const std::string& name,
                                             const OptimizerSettings& s) {
  const ofsdp_optimizer_settings settings{
      s.momentum, s.beta1, s.beta2, s.eps, s.rho, s.nesterov ? 1 : 0, s.bias_correction ? 0 : 1};
  return DeviceOptimizer(device.make_optimizer(name.c_str(), settings), {&device});
}

}  // namespace ofsdp::runtime
