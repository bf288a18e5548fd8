// A product as one call of cuBLASLt: which algorithm is settled here (product_choice.h).
//
// Ownership, threads, errors: product.h.
#pragma once

#include "kernels/cuda/matmul/product.h"

namespace ofsdp::kernels::cuda {

std::unique_ptr<MatrixProduct> make_lt_product(DeviceState& device, const ProductShape& shape);

}  // namespace ofsdp::kernels::cuda
