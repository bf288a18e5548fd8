// Ends a stream's capture and makes a graph of it that can be launched.
//
// A node keeps the priority of the stream it was captured from: the communication stream's work
// goes before the rest of the compute stream's, as in a step that is launched node by node.
//
// Ownership: the caller destroys the graph. Threads: that of the capture. Errors: kFault with the
// call and what CUDA says.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"

namespace ofsdp::kernels::cuda {

// Ends the capture that `stream` began.
Result<cudaGraphExec_t> end_capture(cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
