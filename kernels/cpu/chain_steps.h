// The loops of the operations that chains and operators share, for float32 and float64. An operator
// with one of these formulas takes its loops from here, so a chain gives the bits of its members.
//
// A loop computes y = op(a), or y = op(a, b); see PointwiseRow. Threads: any.
#pragma once

#include "kernels/core/chain_op.h"
#include "kernels/cpu/pointwise.h"

namespace ofsdp::kernels {

PointwiseLoops chain_loops(ChainOp op);  // REQUIRES: not kNumber

}  // namespace ofsdp::kernels
