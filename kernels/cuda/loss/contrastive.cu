// Contrastive loss: one warp per row, except for sums over scores, where rows are as long as all
// ranks' rows together: one block per row.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/loss/loss.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kRowsPerBlock = kThreads / kWarp;
constexpr float kMinNorm = 1e-12f;

// Row and lane of a warp-per-row kernel. Whole warps return, so shuffles stay safe.
#define OFSDP_WARP_ROW(row, lane, rows)                                                \
  const int lane = static_cast<int>(threadIdx.x) % kWarp;                              \
  const int64_t row =                                                                  \
      int64_t{blockIdx.x} * kRowsPerBlock + static_cast<int64_t>(threadIdx.x) / kWarp; \
  if (row >= (rows)) return

__device__ inline float warp_dot(const float* a, const float* b, int64_t n, int lane) {
  float sum = 0;
  for (int64_t k = lane; k < n; k += kWarp) sum += a[k] * b[k];
  return warp_reduce(sum, Add{});
}

OFSDP_CUDA_KERNEL unit_kernel(int64_t rows, int64_t width, const float* x, float* u) {
  OFSDP_WARP_ROW(row, lane, rows);
  const float* const from = x + row * width;
  const float norm = sqrtf(warp_dot(from, from, width, lane));
  const float divisor = norm < kMinNorm ? kMinNorm : norm;
  for (int64_t k = lane; k < width; k += kWarp) u[row * width + k] = from[k] / divisor;
}

// dx = (du - x dot(x, du) / |x|^2) / |x|, or du / kMinNorm for shorter rows.
OFSDP_CUDA_KERNEL unit_grad_kernel(int64_t rows, int64_t width, const float* du, const float* x,
                                   float* dx) {
  OFSDP_WARP_ROW(row, lane, rows);
  const float *const from = x + row * width, *const given = du + row * width;
  const float squares = warp_dot(from, from, width, lane), norm = sqrtf(squares);
  const float dot = warp_dot(from, given, width, lane);
  const bool divides = norm > kMinNorm;
  const float along = divides ? dot / squares : 0.0f;
  const float inverse = 1.0f / (divides ? norm : kMinNorm);
  for (int64_t k = lane; k < width; k += kWarp) {
    dx[row * width + k] = (given[k] - from[k] * along) * inverse;
  }
}

__device__ inline int64_t score_columns(const Scores& s) { return s.of.ranks * s.block; }

// Calls f for this thread's share of a score row, skipping unused columns.
template <typename F>
__device__ inline void for_scores(const Scores& s, const float* row, const F& f) {
  for (int64_t r = 0; r < s.of.ranks; ++r) {
    const int64_t count = rows_of(s.of, r);
    for (int64_t k = threadIdx.x; k < count; k += kThreads) f(row[r * s.block + k]);
  }
}

// Log-sum-exp of a row in two passes: maximum, then sum.
OFSDP_CUDA_KERNEL sums_kernel(Scores s, const float* scores, int k, float* sums) {
  __shared__ float spare[kRowsPerBlock];
  const float* const row = scores + int64_t{blockIdx.x} * score_columns(s);
  float most = -INFINITY, sum = 0;
  for_scores(s, row, [&](float v) { most = Largest{}(most, v); });
  most = group_reduce<kThreads>(most, Largest{}, spare);
  for_scores(s, row, [&](float v) { sum += expf(v - most); });
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  if (threadIdx.x == 0) sums[2 * int64_t{blockIdx.x} + k] = most + logf(sum);
}

// Loss per row.
OFSDP_CUDA_KERNEL losses_kernel(ContrastiveMean m) {
  OFSDP_WARP_ROW(row, lane, m.rows);
  const int64_t at = row * m.width;
  const float same = warp_dot(m.a + at, m.b + at, m.width, lane) * m.inverse_temperature;
  const float* const sums = m.sums + 2 * row;
  if (lane == 0) m.losses[row] = (sums[0] + sums[1]) / 2 - same;
}

// One block.
OFSDP_CUDA_KERNEL mean_kernel(const float* losses, int64_t rows, float* loss) {
  __shared__ double spare[kRowsPerBlock];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) sum += static_cast<double>(losses[i]);
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  if (threadIdx.x != 0) return;
  *loss = rows == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(rows));
}

OFSDP_CUDA_KERNEL terms_kernel(int64_t rows, const float* diff_loss, const float* sums,
                               float* terms) {
  OFSDP_CUDA_ITEM(i, rows);
  terms[3 * i] = sums[2 * i];
  terms[3 * i + 1] = sums[2 * i + 1];
  terms[3 * i + 2] = *diff_loss / static_cast<float>(rows);
}

// One thread per score. Row i pairs with column i of this rank's block, hence the extra term there.
OFSDP_CUDA_KERNEL weights_kernel(Scores s, const float* own, int own_sum, int64_t rank,
                                 float* scores) {
  const int64_t columns = score_columns(s);
  OFSDP_CUDA_ITEM(at, s.rows * columns);
  const int64_t i = at / columns, column = at - i * columns;
  const int64_t r = column / s.block, k = column - r * s.block;
  float weight = 0;
  if (k < rows_of(s.of, r)) {
    const float *const mine = own + 3 * i, *const theirs = row_of(s.of, r, k);
    const float score = scores[at];
    weight = mine[2] * expf(score - mine[own_sum]) + theirs[2] * expf(score - theirs[1 - own_sum]);
    if (r == rank && k == i) weight -= 2 * mine[2];
  }
  scores[at] = weight;
}

int64_t warps_for(int64_t rows) { return blocks_for(rows, kRowsPerBlock); }

}  // namespace

cudaError_t unit_rows(int64_t rows, int64_t width, const float* x, float* u, cudaStream_t stream) {
  return launch_blocks(stream, warps_for(rows), kThreads, unit_kernel, rows, width, x, u);
}

cudaError_t unit_rows_grad(int64_t rows, int64_t width, const float* du, const float* x, float* dx,
                           cudaStream_t stream) {
  return launch_blocks(stream, warps_for(rows), kThreads, unit_grad_kernel, rows, width, du, x, dx);
}

cudaError_t contrastive_sums(const Scores& s, const float* scores, int k, float* sums,
                             cudaStream_t stream) {
  return launch_blocks(stream, s.rows, kThreads, sums_kernel, s, scores, k, sums);
}

cudaError_t contrastive_mean(const ContrastiveMean& m, cudaStream_t stream) {
  OFSDP_CUDA_TRY(launch_blocks(stream, warps_for(m.rows), kThreads, losses_kernel, m));
  return launch_blocks(stream, 1, kThreads, mean_kernel, m.losses, m.rows, m.loss);
}

cudaError_t contrastive_terms(int64_t rows, const float* diff_loss, const float* sums, float* terms,
                              cudaStream_t stream) {
  return over(rows, stream, terms_kernel, rows, diff_loss, sums, terms);
}

cudaError_t contrastive_weights(const Scores& s, const float* own, int own_sum, int64_t rank,
                                float* scores, cudaStream_t stream) {
  return over(s.rows * s.row(), stream, weights_kernel, s, own, own_sum, rank, scores);
}

}  // namespace ofsdp::kernels::cuda
