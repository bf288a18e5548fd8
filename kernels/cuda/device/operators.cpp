// The table's operators: a kernel is made by the best implementation that accepts its problem.
//
// [Note: workspaces] Plans place them at cache lines, which is what the CPU wants. cuBLASLt asks for
// multiples of 256 bytes, and scratch of our own is cut from there on, so each has room to begin later.
#include <cstdint>
#include <string>

#include "kernels/core/device_problem.h"
#include "kernels/cuda/device/device_state.h"
#include "kernels/cuda/device/implementations.h"

struct ofsdp_kernel {
  std::unique_ptr<ofsdp::kernels::cuda::CudaKernel> kernel;
};

namespace ofsdp::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256, kPlaced = 64;

ofsdp_kernel* make_kernel(ofsdp_device* device, const ofsdp_problem* c, size_t* workspace) {
  auto kernel = make_operator(*device, c->op, decode(*c));
  if (kernel == nullptr) {
    device->error = std::string("no kernel for ") + c->op;
    return nullptr;
  }
  const size_t bytes = kernel->workspace_bytes();
  *workspace = bytes == 0 ? 0 : bytes + kAlignment - kPlaced;
  return new ofsdp_kernel{std::move(kernel)};
}

void drop_kernel(ofsdp_device*, ofsdp_kernel* kernel) { delete kernel; }

int32_t run(ofsdp_device* device, ofsdp_kernel* kernel, ofsdp_stream* stream,
            const ofsdp_launch* launch) {
  ofsdp_launch aligned = *launch;
  const auto workspace = reinterpret_cast<uintptr_t>(launch->workspace);
  aligned.workspace =
      reinterpret_cast<void*>((workspace + kAlignment - 1) / kAlignment * kAlignment);
  return failed(device, kernel->kernel->run(raw(stream), aligned), "launch");
}

}  // namespace

void add_operators(ofsdp_device_table& table) {
  table.make_kernel = make_kernel;
  table.drop_kernel = drop_kernel;
  table.run = run;
}

}  // namespace ofsdp::kernels::cuda
