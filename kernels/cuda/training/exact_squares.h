// A sum of squares that depends on no order and no cut: runtime/engine/exact_squares.h has the
// format, which these kernels follow bit for bit. Limbs are whole numbers, so atomic additions give
// the same sum in any order; a value adds less than 2^33 to each of three limbs of 64 bits. At most
// 2^31 values until a sum is taken.
//
// Memory: 4 bytes an element.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/device_values.h"

namespace ofsdp::kernels::cuda {

cudaError_t add_exact_squares(const float* values, int64_t count, ofsdp_exact_sum* sum,
                              cudaStream_t stream);
// As OFSDP_EXACT_LIMBS doubles, which ranks add up; the sum is 0 again.
cudaError_t take_exact_sum(ofsdp_exact_sum* sum, double* limbs, cudaStream_t stream);
cudaError_t exact_norm(const double* limbs, double* squared_norm, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
