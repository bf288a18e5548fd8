#include "kernels/cuda/device/implementations.h"

#include <algorithm>

#include "kernels/cuda/device/operands.h"

namespace ofsdp::kernels::cuda {
namespace {

bool writes_nothing(const Problem& p) {
  return std::ranges::all_of(
      p.outputs, [](const TensorDesc& out) { return !out.present() || out.numel() == 0; });
}

}  // namespace

const CudaImplementations& implementations() {
  static const CudaImplementations all = [] {
    CudaImplementations list;
#define OFSDP_CUDA_FAMILY(name) add_##name(list);
    OFSDP_CUDA_FAMILIES(OFSDP_CUDA_FAMILY)
#undef OFSDP_CUDA_FAMILY
    return list;
  }();
  return all;
}

std::unique_ptr<CudaKernel> make_operator(DeviceState& device, const std::string& op,
                                          const Problem& problem, KernelChoice* choice) {
  for (const CudaImplementation& implementation : implementations()) {
    if (implementation.op != op) continue;
    const auto take = [&](std::unique_ptr<CudaKernel> kernel) {
      if (kernel != nullptr && choice != nullptr) choice->taken = implementation.name;
      return kernel;
    };
    if (writes_nothing(problem)) {
      return take(make_cuda_kernel([](cudaStream_t, const Launch&) { return cudaSuccess; }));
    }
    const Acceptance acceptance = implementation.takes_pitch || problem.all_dense()
                                      ? implementation.accepts(problem)
                                      : Acceptance::refuse("rows of an operand are apart");
    if (acceptance) {
      if (auto kernel = take(implementation.create(device, problem))) return kernel;
    }
    const char* const reason =
        acceptance ? "it has too many axes, or the library has no algorithm" : acceptance.reason();
    if (choice != nullptr) choice->refused.push_back({implementation.name, reason});
  }
  return nullptr;
}

std::vector<int64_t> known_ints(const Problem& p, size_t input) {
  const Constant* constant = p.constant(input);
  if (constant == nullptr) return {};
  return *int_values(*constant);
}

double known_scalar(const Problem& p, size_t input, double otherwise) {
  const Constant* constant = p.constant(input);
  if (constant == nullptr) return otherwise;
  return to_doubles(constant->desc, constant->bytes.data())[0];
}

Pads known_pads(const Problem& p) {
  const auto rank = static_cast<size_t>(p.in(0).shape.rank());
  const std::vector<int64_t> given = known_ints(p, 1), axes = known_ints(p, 3);
  const size_t count = given.size() / 2;
  Pads pads{std::vector<int64_t>(rank), std::vector<int64_t>(rank)};
  for (size_t i = 0; i < count; ++i) {
    const int64_t axis = p.has_in(3) ? axes[i] : static_cast<int64_t>(i);
    const auto at = static_cast<size_t>(axis < 0 ? axis + p.in(0).shape.rank() : axis);
    pads.before[at] = given[i];
    pads.after[at] = given[count + i];
  }
  return pads;
}

}  // namespace ofsdp::kernels::cuda
