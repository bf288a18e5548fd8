// How far a stream is, for a host that may not wait for it: a number in pinned memory.
#include "kernels/cuda/device/handles.h"

namespace ofsdp::kernels::cuda {
namespace {

__global__ void mark_kernel(int64_t* pinned, int64_t value) {
  *static_cast<volatile int64_t*>(pinned) = value;
  __threadfence_system();
}

int32_t mark(ofsdp_device* device, ofsdp_stream* stream, int64_t* pinned, int64_t value) {
  mark_kernel<<<1, 1, 0, raw(stream)>>>(pinned, value);
  return failed(device, cudaGetLastError(), "mark");
}

}  // namespace

void add_mark(ofsdp_device_table& table) { table.mark = mark; }

}  // namespace ofsdp::kernels::cuda
