// RowsOfRanks inside of a kernel.
#pragma once

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/rows_of_ranks.h"

namespace ofsdp::kernels::cuda {

// Whatever the bytes, the number lies inside of the part.
__device__ inline int64_t rows_of(const RowsOfRanks& r, int64_t rank) {
  if (r.header == 0) return r.most;
  const float said = r.data[rank * r.part], most = static_cast<float>(r.most);
  return said > 0 ? static_cast<int64_t>(said < most ? said : most) : 0;
}

__device__ inline const float* row_of(const RowsOfRanks& r, int64_t rank, int64_t i = 0) {
  return r.data + rank * r.part + r.header + i * r.width;
}

}  // namespace ofsdp::kernels::cuda
