// A device that only plans: what `fsdp-run plan --device cuda` plans for on a host without a GPU. It has
// no memory and runs nothing. Its kernels accept every problem and need no workspace, since the library
// alone knows which there are and what they take; nodes that are joined for a device it refuses, so
// that their parts stay apart.
//
// Ownership: the Device is the caller's. Threads: one. Errors: none.
#pragma once

#include "kernels/core/device.h"

namespace ofsdp::runtime {

Result<std::unique_ptr<Device>> make_planning_device();
bool only_plans(const Device& device);

}  // namespace ofsdp::runtime
