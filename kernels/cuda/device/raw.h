// The CUDA handles that handles of the device interface (kernels/core/device.h) are: this library
// alone makes those, by the same cast. Pure; any thread.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/device.h"

namespace ofsdp::kernels::cuda {

inline cudaStream_t raw(ofsdp_stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t raw(ofsdp_event* event) { return reinterpret_cast<cudaEvent_t>(event); }
inline cudaGraphExec_t raw(ofsdp_device_graph* graph) {
  return reinterpret_cast<cudaGraphExec_t>(graph);
}

}  // namespace ofsdp::kernels::cuda
