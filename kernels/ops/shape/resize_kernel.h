// Kernels that apply the maps of resize_map.h: one axis after another, those that shrink first.
//
// float32 and float64 with weights, or elements of any type moved when every row has one entry.
// Operand 0 to output 0, both plain or both channels last. Owns: values. Threads: as Kernel.
#pragma once

#include <memory>

#include "kernels/ops/shape/resize_map.h"

namespace ofsdp::kernels::ops {

// `fill` goes where a map has a row outside of x.
std::unique_ptr<Kernel> make_resize(const Problem& problem, const ResizeMaps& maps, double fill);
// dy to dx.
std::unique_ptr<Kernel> make_resize_grad(const Problem& problem, const ResizeMaps& maps);

}  // namespace ofsdp::kernels::ops
