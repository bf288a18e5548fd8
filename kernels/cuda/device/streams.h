// CUDA streams, events and graphs on the host: handle conversion, error status, event waits,
// captured graphs.
#pragma once

#include <cuda_runtime.h>

#include "kernels/base/status.h"
#include "kernels/core/device.h"

namespace ofsdp::kernels::cuda {

// Converts the handles of the device interface (kernels/core/device.h) to CUDA's. This library has
// made them from CUDA's handles by the inverse cast.
inline cudaStream_t raw(ofsdp_stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t raw(ofsdp_event* event) { return reinterpret_cast<cudaEvent_t>(event); }
inline cudaGraphExec_t raw(ofsdp_device_graph* graph) {
  return reinterpret_cast<cudaGraphExec_t>(graph);
}

// Returns OK, or a fault with `call` and CUDA's error text; clears the CUDA error.
Status checked(cudaError_t error, const char* call);

// Waits for `event`: polls for 50 us, then blocks. Waking a blocked thread takes tens of
// microseconds, over 100 on virtual machines. That is longer than the upload of a small
// micro-batch, for which the host waits in every step. REQUIRES: no stream capture that this thread
// began is open.
cudaError_t wait_for_event(cudaEvent_t event);

// Ends the capture on `stream` and returns an executable graph; the caller destroys it. Nodes keep
// the priority of their capture stream, so communication goes before computing, as
// without graphs. Call it on the thread that began the capture.
Result<cudaGraphExec_t> end_capture(cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
