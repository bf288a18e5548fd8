// Copies of matrices with room next to them, for products whose extents are rounded up
// (product.cpp).
// `size`: bytes of an element, 2 or 4.
//
// Ownership: the caller's memory. Threads: any. Errors: those of the launch.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

struct StoredMatrix {
  int64_t rows = 0, columns = 0;
  int64_t row = 0;  // elements from one row to the next
};

// to = from where both have an element, 0 in the rest of `to`.
cudaError_t copy_padded(size_t size, const void* from, const StoredMatrix& of_from, void* to,
                        const StoredMatrix& of_to, cudaStream_t stream);

// Columns from `begin` on become 0.
cudaError_t clear_columns(size_t size, void* data, const StoredMatrix& of, int64_t begin,
                          cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
