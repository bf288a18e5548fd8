// The float32 kernel of a Chain (kernels/core/chain.h): block after block of the elements goes
// through all steps while it is in the first-level cache, each step one vectorised loop.
//
// Operands are the outputs' shape in the outputs' layout, or one element, or (plain) the trailing
// axes of that shape, which are repeated. Values between steps live in a buffer on the stack of the
// thread, whose places are settled while planning; the block is as long as fits. Output 0 may lie on
// an input: nothing reads a block's inputs after its output 0 is written.
//
// Owns: a value, made while planning; running allocates nothing. Threads: as Kernel; results do not
// depend on the cut. Errors: none; the chain has been parsed by infer.
#pragma once

#include <memory>

#include "kernels/core/chain.h"
#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

// Whether the operands are as above.
Acceptance chain_accepts(const Problem& problem);
std::unique_ptr<Kernel> make_chain_kernel(const Chain& chain, const Problem& problem);

}  // namespace ofsdp::kernels
