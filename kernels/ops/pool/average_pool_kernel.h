// AveragePool's kernels and those of its gradient, float32 and float64, x and y both plain or both
// channels last. Operand 0 to output 0. Owns: values. Threads: as Kernel; rows of outputs, for the
// gradient planes or images, are dealt to the pool. Errors: none.
#pragma once

#include <memory>

#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {

// 1 / count of every output position: attribute count_include_pad.
std::vector<double> average_scales(const Attributes& attributes, const Window& window);

std::unique_ptr<Kernel> make_average_pool(const Problem& problem);
std::unique_ptr<Kernel> make_average_pool_grad(const Problem& problem);

}  // namespace ofsdp::kernels::ops
