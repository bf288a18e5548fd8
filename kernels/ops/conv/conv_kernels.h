// Kernels of convolutions that other operators use as well, and plain loops for the types that
// oneDNN does not have.
//
// Operands are those of Conv (x, w, optional b -> y), ofsdp.ConvGradInput (dy, w -> dx) and
// ofsdp.ConvGradWeights (x, dy -> dw, optional db), with the attributes these nodes carry. The
// loops take float64 in the plain layout. Threads: as Kernel.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

Acceptance accepts_conv_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_input_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_weights_loops(const Problem& problem);

// oneDNN's.
Acceptance accepts_conv_grad_input(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_input(const Problem& problem);

// A sample case in float64, float16 and bfloat16.
std::vector<SampleCase> in_rare_types(const SampleCase& sample);

}  // namespace ofsdp::kernels::ops
