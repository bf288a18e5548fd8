// DeviceState: facts about the GPU and what a run allows, which operators ask when they are made.
//
// Operators see the name alone (context.h), so that they also compile for a device of the tests.
// Owned by the device; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ofsdp::kernels::cuda {

struct DeviceState {
  int ordinal = 0;
  int multiprocessors = 0;
  int capability = 0;                   // 90 for sm_90
  size_t bytes = 0;                     // of its memory
  bool tf32 = false, may_vary = false;  // for operators made from now on (Device::allow)
  uint64_t identity = 0;                // hash of its UUID
  std::string name = {};
  std::shared_ptr<void> cudnn = {};  // its handle, made when first asked for
};

void use_device(int ordinal);  // on this thread

}  // namespace ofsdp::kernels::cuda
