// Kernels of plug-ins on a device: `cuda_forward` and `cuda_backward` of ofsdp_plugin.h under the
// Kernel that a device's executor runs. A call hands over the node with addresses of device memory
// and the native stream of the device's compute stream; it is made while a step is launched or
// captured, so what was captured of it is replayed without another call. The node's `step` is
// therefore -1.
//
// Ownership: kernels; the device outlives them. Threads: one. Errors: kFault, as those of the
// CPU's.
#pragma once

#include "kernels/core/device.h"
#include "plugins/loading/operators.h"

namespace ofsdp::plugins {

// Whether the kernel for the problem is a plug-in's: that comes before a built-in one of its name.
bool plugin_takes(const OpDef& op, const Problem& problem);

// REQUIRES: plugin_takes. Null: the plug-in has no function for CUDA.
std::unique_ptr<Kernel> make_plugin_kernel(Device& device, const OpDef& op, const Problem& problem);

}  // namespace ofsdp::plugins
