#include "kernels/ops/pointwise/activation.h"

#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels::ops {
namespace {

OFSDP_MULTIARCH void relu_in_place(float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = dst[i] < 0.0f ? 0.0f : dst[i];
}

}  // namespace

bool has_relu(const Attributes& attributes) {
  return attributes.s(kActivationAttribute, "") == "relu";
}

void reference_relu(std::vector<double>& values) {
  for (double& v : values) v = v < 0 ? 0 : v;
}

std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, int64_t count) {
  const size_t workspace = kernel->workspace_bytes();
  return make_kernel(
      [inner = std::move(kernel), count](const KernelArgs& a) {
        Status status = inner->run(a);
        if (!status.ok()) return status;
        parallel_for(count, kElementGrain, [&](int64_t begin, int64_t end) {
          relu_in_place(a.out<float>(0) + begin, end - begin);
        });
        return ok_status();
      },
      workspace);
}

Ref activation_grad(GradBuilder& b) {
  if (!has_relu(b.attributes())) return b.grad_output(0);
  return b.emit1("ofsdp.ReluGrad", {b.grad_output(0), b.output(0)});
}

}  // namespace ofsdp::kernels::ops
