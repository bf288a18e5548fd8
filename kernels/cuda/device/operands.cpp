#include "kernels/cuda/device/operands.h"

namespace ofsdp::kernels::cuda {

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

}  // namespace ofsdp::kernels::cuda
