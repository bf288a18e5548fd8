// An Einsum of two float32 operands whose labels are batch, rows, columns or summed: laid out as
// matrices, where they do not lie so already, and multiplied by oneDNN.
//
// Ownership, threads: as Kernel. Errors: none.
#pragma once

#include <memory>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels::ops {

bool accepts_einsum_matrices(const Problem& p);
std::unique_ptr<Kernel> create_einsum_matrices(const Problem& p);

}  // namespace ofsdp::kernels::ops
