// The operators of the counting device: the CPU's.
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {

std::unique_ptr<Kernel> make_operator(CountingDevice& device, const std::string& op,
                                      const Problem& problem, KernelChoice* choice) {
  if (op.starts_with("ofsdp.update.")) return make_cpu_update(device, op, problem);
  const size_t dot = op.rfind('.');
  const OpDef* def =
      device.registry.find(dot == std::string::npos ? "" : op.substr(0, dot), op.substr(dot + 1));
  if (def == nullptr) return nullptr;
  // In 16 bits the parts round between them, and this device gives the bits of the CPU's parts.
  const bool narrow = problem.in(0).dtype != DType::kFloat32;
  if (narrow && op == "ofsdp.GemmEpilogue") return nullptr;
  if (!problem.all_dense()) return nullptr;  // the CPU's kernels take no other tensors
  auto kernel = create_kernel(*def, problem, choice);
  return kernel.ok() ? *std::move(kernel) : nullptr;
}

}  // namespace ofsdp::counting
