// MaxPool's kernel for float32, 1 to 3 spatial axes, x and y both plain or both channels last.
//
// Takes x as input 0; gives y as output 0, Indices (plain, int64) as output 1 and winners as output
// 2 when present. Values. Threads: as Kernel; rows of outputs go to the pool. No errors.
#pragma once

#include <memory>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels::ops {

// Whether y and winners have the layout of x, and Indices the plain one.
bool has_pool_layouts(const Problem& problem);

std::unique_ptr<Kernel> make_max_pool(const Problem& problem);

// The same for other types (float64, int8, uint8), by plain loops and without an activation.
Acceptance accepts_max_pool_loops(const Problem& problem);
std::unique_ptr<Kernel> make_max_pool_loops(const Problem& problem);

}  // namespace ofsdp::kernels::ops
