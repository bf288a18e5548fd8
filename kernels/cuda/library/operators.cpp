// The table's operators: a kernel is made by the best implementation that accepts its problem.
#include <string>

#include "kernels/core/device_problem.h"
#include "kernels/cuda/library/device_state.h"
#include "kernels/cuda/library/implementations.h"

struct ofsdp_kernel {
  std::unique_ptr<ofsdp::cuda::CudaKernel> kernel;
};

namespace ofsdp::cuda {
namespace {

ofsdp_kernel* make_kernel(ofsdp_device* device, const ofsdp_problem* c, size_t* workspace) {
  auto kernel = make_operator(*device, c->op, decode(*c));
  if (kernel == nullptr) {
    device->error = std::string("no kernel for ") + c->op;
    return nullptr;
  }
  *workspace = kernel->workspace_bytes();
  return new ofsdp_kernel{std::move(kernel)};
}

void drop_kernel(ofsdp_device*, ofsdp_kernel* kernel) { delete kernel; }

int32_t run(ofsdp_device* device, ofsdp_kernel* kernel, ofsdp_stream* stream,
            const ofsdp_launch* launch) {
  return failed(device, kernel->kernel->run(raw(stream), *launch), "launch");
}

}  // namespace

void add_operators(ofsdp_device_table& table) {
  table.make_kernel = make_kernel;
  table.drop_kernel = drop_kernel;
  table.run = run;
}

}  // namespace ofsdp::cuda
