// What LpPool and GlobalLpPool share: y = (sum over taps of |x|^p)^(1/p) and its gradient,
// ofsdp.LpPoolGrad(dy, x, y): dx = sum of dy sign(x) |x|^(p-1) y^(1-p), 0 where y is 0. The kernels
// are plain loops over the window in float32 and float64.
//
// Owns: values. Threads: as Kernel.
#pragma once

#include <memory>

#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {

// `attributes` have the window and p.
std::unique_ptr<Kernel> make_lp_pool(const Problem& problem, const Attributes& attributes);
std::vector<RefTensor> reference_lp_pool(const ReferenceContext& context,
                                         const Attributes& attributes);
bool accepts_lp_pool(const Problem& problem);
void grad_lp_pool(GradBuilder& builder, const Attributes& attributes);

}  // namespace ofsdp::kernels::ops
