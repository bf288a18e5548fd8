// A block per 1024 columns of a row, or of a gathered run; neighbouring threads write neighbours.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/matmul/stored_product.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kStretch = 1024;

__device__ inline float stored_element(StoredType type, const std::byte* bytes, int64_t i) {
  switch (type) {
    case StoredType::kUInt4:
    case StoredType::kInt4: {
      const auto byte = static_cast<unsigned>(bytes[i / 2]);
      const int q = static_cast<int>(i % 2 != 0 ? byte >> 4 : byte & 15U);
      return static_cast<float>(type == StoredType::kInt4 ? (q ^ 8) - 8 : q);
    }
    case StoredType::kUInt8:
      return static_cast<float>(static_cast<uint8_t>(bytes[i]));
    case StoredType::kInt8:
      return static_cast<float>(static_cast<int8_t>(bytes[i]));
    case StoredType::kFloat16:
      return __half2float(reinterpret_cast<const __half*>(bytes)[i]);
    case StoredType::kBFloat16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(bytes)[i]);
    case StoredType::kFloat32:
      break;
  }
  return reinterpret_cast<const float*>(bytes)[i];
}

// `group`: of the column.
__device__ inline float stored_value(const StoredMatrix& m, const StoredBytes& bytes, int64_t r,
                                     int64_t c, int64_t group) {
  const float element = stored_element(m.type, bytes.elements, r * m.row_pitch + c);
  if (m.scale_dtype == DType::kUndefined) return element;
  const int64_t block = r / m.row_block, step = group * m.column_step;
  const float scale =
      stored_element(stored_type(m.scale_dtype), bytes.scales, block * m.row_step + step);
  float zero = m.zero_otherwise;
  if (m.has_zeros) zero = stored_element(m.zero_type, bytes.zeros, block * m.zero_pitch + step);
  return __fmul_rn(__fadd_rn(element, -zero), scale);  // never contracted
}

OFSDP_CUDA_KERNEL widen_rows(StoredMatrix m, StoredBytes bytes, int64_t groups, int64_t stretches,
                             Fault fault, float* values) {
  const int64_t r = blockIdx.x / stretches, first = blockIdx.x % stretches * kStretch;
  const int64_t end = first + kStretch < m.columns ? first + kStretch : m.columns;
  for (int64_t c = first + threadIdx.x; c < end; c += kThreads) {
    int64_t group = bytes.g_idx != nullptr ? bytes.g_idx[c] : c / m.column_block;
    if (bytes.g_idx != nullptr && (group < 0 || group >= groups)) {
      note(fault, group, groups);
      group = 0;
    }
    values[r * m.columns + c] = stored_value(m, bytes, r, c, group);
  }
}

OFSDP_CUDA_KERNEL gather_rows(StoredMatrix m, StoredBytes bytes, StoredRows rows, int64_t stretches,
                              Fault fault, float* values) {
  const int64_t run = blockIdx.x / stretches, first = blockIdx.x % stretches * kStretch;
  const int64_t end = first + kStretch < rows.inner ? first + kStretch : rows.inner;
  const int64_t k = run % rows.count;
  const int64_t given = rows.wide ? static_cast<const int64_t*>(rows.indices)[k]
                                  : static_cast<const int32_t*>(rows.indices)[k];
  int64_t index = given < 0 ? given + rows.size : given;
  if (index < 0 || index >= rows.size) {
    if (threadIdx.x == 0) note(fault, given, rows.size);
    index = 0;
  }
  const int64_t from = (run / rows.count * rows.size + index) * rows.inner;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const int64_t r = (from + i) / m.columns, c = (from + i) % m.columns;
    values[run * rows.inner + i] = stored_value(m, bytes, r, c, c / m.column_block);
  }
}

}  // namespace

cudaError_t widen_stored(const StoredMatrix& matrix, const StoredBytes& bytes, int64_t groups,
                         Fault fault, float* values, cudaStream_t stream) {
  const int64_t stretches = blocks_for(matrix.columns, kStretch);
  return launch_blocks(stream, matrix.rows * stretches, kThreads, widen_rows, matrix, bytes, groups,
                       stretches, fault, values);
}

cudaError_t gather_stored(const StoredMatrix& matrix, const StoredBytes& bytes,
                          const StoredRows& rows, Fault fault, float* values, cudaStream_t stream) {
  const int64_t stretches = blocks_for(rows.inner, kStretch);
  return launch_blocks(stream, rows.outer * rows.count * stretches, kThreads, gather_rows, matrix,
                       bytes, rows, stretches, fault, values);
}

}  // namespace ofsdp::kernels::cuda
