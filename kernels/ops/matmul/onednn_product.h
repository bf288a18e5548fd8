// Products by oneDNN. Operands: as MatrixProduct, with as few axes of a batch as there can be.
// Values. Threads: as Kernel. Errors: none.
#pragma once

#include <memory>

#include "kernels/ops/matmul/matrix_product.h"

namespace ofsdp::kernels::ops {

// Whether the dtype and the addend are ones that oneDNN has, empty products included.
bool onednn_may_multiply(const MatrixProduct& product);

// REQUIRES: onednn_may_multiply, a product that is not empty.
bool onednn_multiplies(const MatrixProduct& product);
std::unique_ptr<Kernel> make_onednn_product(const MatrixProduct& product);

}  // namespace ofsdp::kernels::ops
