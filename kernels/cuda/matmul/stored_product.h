// Launchers for stored matrices (kernels/core/stored_matrix.h): whole matrices as float32, and the
// rows of a table. Operands are device memory; values have the CPU's bits.
#pragma once

#include "kernels/core/stored_matrix.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// Writes the matrix [rows, columns], dense. Reports a group of StoredBytes::g_idx that is not below
// `groups`. Bytes per element: 4, and the stored bits.
cudaError_t widen_stored(const StoredMatrix& matrix, const StoredBytes& bytes, int64_t groups,
                         Fault fault, float* values, cudaStream_t stream);

// y[o, k, i] = element (o * size + indices[k]) * inner + i of the matrix, row by row. A negative
// index counts from the end; one outside is reported.
struct StoredRows {
  int64_t outer = 1, size = 0, inner = 1, count = 0;
  bool wide = true;  // int64 indices, else int32
  const void* indices = nullptr;
};
cudaError_t gather_stored(const StoredMatrix& matrix, const StoredBytes& bytes,
                          const StoredRows& rows, Fault fault, float* values, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
