// Which kernel computes an operator: the implementations of all files, best first.

#include "kernels/core/device_problem.h"
#include "kernels/cuda/library/implementations.h"

namespace ofsdp::cuda {
namespace {

ofsdp_kernel* make_kernel(ofsdp_device* device, const ofsdp_problem* c, size_t* workspace) {
  const Problem problem = decode(*c);
  for (const CudaImplementation& implementation : implementations()) {
    if (implementation.op != c->op || !implementation.accepts(problem)) continue;
    auto kernel = implementation.create(*device, problem);
    if (kernel == nullptr) continue;
    *workspace = kernel->workspace_bytes();
    return new ofsdp_kernel{std::move(kernel)};
  }
  device->error = std::string("no kernel for ") + c->op;
  return nullptr;
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
