// What ReduceMax and ReduceMin share. Ownership: values. Threads: any. Errors: none.
#pragma once

#include "kernels/ops/reduce/reduce_axes.h"

namespace ofsdp::kernels::ops {

// dx = dy / count where x = y, else 0; count: how many of one reduction are equal to y.
void grad_of_reduced_extreme(GradBuilder& b);

RefTensor reference_of_extreme(const ReferenceContext& c, bool largest);

inline bool reduces_any_number(const Problem& p) {
  return reduces_numbers(p) || (p.in(0).dtype == DType::kBool && p.all_plain());
}

template <auto create, typename Fold>
std::vector<Implementation> extreme_kernels() {
  return {{"blocks", reduces_floats, create},
          in_float32<reduces_floats, create>(),
          {"loops", reduces_any_number, create_loops<Fold>}};
}

}  // namespace ofsdp::kernels::ops
