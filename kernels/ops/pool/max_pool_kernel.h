// MaxPool's kernel for float32, 1 to 3 spatial axes, x and y both plain or both channels last.
//
// Takes x as input 0; gives y as output 0, Indices (plain, int64) as output 1 and winners as output
// 2 when present. One vectorised loop serves both layouts: see the source. Owns: values. Threads:
// as Kernel; rows of outputs are dealt to the pool. Errors: none.
#pragma once

#include <memory>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels::ops {

std::unique_ptr<Kernel> make_max_pool(const Problem& problem);

// The same of other types (float64, int8, uint8), by plain loops and without an activation.
bool accepts_max_pool_loops(const Problem& problem);
std::unique_ptr<Kernel> make_max_pool_loops(const Problem& problem);

}  // namespace ofsdp::kernels::ops
