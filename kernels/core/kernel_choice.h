// KernelChoice: the implementation that a kernel came from, and why the ones listed before it were
// not taken. Filled by create_kernel (registry.h) and Device::make_kernel, printed by `plan
// --explain`.
#pragma once

#include <string>
#include <vector>

namespace ofsdp::kernels {

struct KernelChoice {
  struct Refused {
    std::string name, reason;
  };
  std::string taken;  // empty: none
  std::vector<Refused> refused;
};

}  // namespace ofsdp::kernels
