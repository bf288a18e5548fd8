// Det and its gradient (transform.h). kernels/formulas/pivots.h has the elimination.
#include <algorithm>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/matmul/transform.h"
#include "kernels/formulas/pivots.h"

namespace ofsdp::kernels::cuda {
namespace {

// Each has room for one matrix at a time.
int64_t determinant_threads(int64_t count) { return std::clamp<int64_t>(count, 1, 1 << 14); }

OFSDP_CUDA_KERNEL det_matrices(int64_t n, int64_t count, int64_t threads, const float* x, float* y,
                               std::byte* scratch) {
  OFSDP_CUDA_ITEM(thread, threads);
  const PivotedMatrix matrix(n, scratch + thread * PivotedMatrix::bytes(n));
  for (int64_t m = thread; m < count; m += threads) {
    double made = matrix.factor(x + m * n * n);
    for (int64_t k = 0; k < n; ++k) made *= matrix.at(k, k);
    y[m] = static_cast<float>(made);
  }
}

OFSDP_CUDA_KERNEL det_cofactors(int64_t n, int64_t count, int64_t threads, const float* dy,
                                const float* x, float* dx, std::byte* scratch) {
  OFSDP_CUDA_ITEM(thread, threads);
  const PivotedMatrix matrix(n, scratch + thread * PivotedMatrix::bytes(n));
  for (int64_t m = thread; m < count; m += threads) {
    const double scale = matrix.factor(x + m * n * n) * static_cast<double>(dy[m]);
    matrix.solve();
    float* const to = dx + m * n * n;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        to[matrix.rows[i] * n + matrix.columns[j]] =
            static_cast<float>(scale * matrix.solved[j * n + i]);
      }
    }
  }
}

}  // namespace

size_t determinant_scratch(int64_t n, int64_t count) {
  return static_cast<size_t>(determinant_threads(count)) * PivotedMatrix::bytes(n);
}

cudaError_t determinant(int64_t n, int64_t count, const float* x, float* y, void* scratch,
                        cudaStream_t stream) {
  const int64_t threads = determinant_threads(count);
  return over(threads, stream, det_matrices, n, count, threads, x, y,
              static_cast<std::byte*>(scratch));
}

cudaError_t determinant_grad(int64_t n, int64_t count, const float* dy, const float* x, float* dx,
                             void* scratch, cudaStream_t stream) {
  const int64_t threads = determinant_threads(count);
  return over(threads, stream, det_cofactors, n, count, threads, dy, x, dx,
              static_cast<std::byte*>(scratch));
}

}  // namespace ofsdp::kernels::cuda
