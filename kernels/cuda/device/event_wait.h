// The host's wait for an event: it asks for a while before it blocks. Waking a blocked thread takes
// some tens of microseconds, on virtual machines 100 and more: longer than the upload of a small
// micro-batch, for which the host waits in every step.
//
// Threads: any. Errors: CUDA's.
#pragma once

#include <cuda_runtime_api.h>

namespace ofsdp::kernels::cuda {

// Not in a capture.
cudaError_t wait_for_event(cudaEvent_t event);

}  // namespace ofsdp::kernels::cuda
