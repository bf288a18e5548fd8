#include "kernels/cuda/device/captured_graph.h"

namespace ofsdp::kernels::cuda {
namespace {

Status said(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // so that the next call does not find it
  return base::fault("{}: {}", what, cudaGetErrorString(error));
}

}  // namespace

Result<cudaGraphExec_t> end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  OFSDP_RETURN_IF_ERROR(said(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaError_t error =
      cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  if (error == cudaSuccess) error = cudaGraphUpload(executable, stream);
  OFSDP_RETURN_IF_ERROR(said(error, "cudaGraphInstantiate"));
  return executable;
}

}  // namespace ofsdp::kernels::cuda
