// How MatMulNBits stores its weight: packed [N, blocks, block_size * bits / 8], scales [N, blocks].
// Threads: any. Errors: kInput, expected and found.
#pragma once

#include "kernels/core/op_def.h"
#include "kernels/cpu/stored_matrix.h"

namespace ofsdp::kernels::ops {

// Operands of a weight in few bits; an absent one is not present().
struct NBitsOperands {
  TensorDesc weight, scales, zero_points, g_idx;
};

Result<StoredMatrix> n_bits_matrix(const Attributes& attributes, const NBitsOperands& operands);

}  // namespace ofsdp::kernels::ops
