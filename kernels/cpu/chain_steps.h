// The loops of the steps of a chain: row.y = op(row.a, row.b), b unread by operations of one
// operand. The formulas are those of the operators of the same name (kernels/ops/), so a chain gives
// the bits of its members. Threads: any.
#pragma once

#include "kernels/core/chain.h"
#include "kernels/cpu/elementwise.h"

namespace ofsdp::kernels {

using ChainLoop = void (*)(const BinaryRow<float>&);

ChainLoop chain_loop(ChainOp op);  // of all but kNumber

}  // namespace ofsdp::kernels
