// The optimizers of kernels/optimizers/updates.h on the device: gradient (of any float type, scaled
// by the clip factor), parameter and states are read once and written once.
//
// Memory per element, in bytes, without the gradient: 24 with two states, 16 with one, 8 with none.
// Views; nothing is owned. One thread per device. Errors: those of the launch,
// cudaErrorNotSupported for a gradient that is no float.
#pragma once

#include "kernels/core/optimizer.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

using DeviceUpdate = cudaError_t (*)(const OptimizerSettings& settings,
                                     const ofsdp_device_update& update, cudaStream_t stream);

// Returns the update called `name`, null if there is none. "assign" writes the gradient to the
// parameter: results that were computed elsewhere.
DeviceUpdate find_update(const char* name);

}  // namespace ofsdp::kernels::cuda
