// Deterministic: a thread block sums 4096 losses in double, then one block sums the block results.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/pointwise/pointwise_math.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kBlock = 4096;

__device__ inline double element_loss(MeanLoss kind, float x, float t) {
  if (kind == MeanLoss::kSquares) {
    const double d = static_cast<double>(x) - static_cast<double>(t);
    return d * d;
  }
  const float tail = log1pf(expf(-fabsf(x)));
  return static_cast<double>((x > 0 ? x : x != x ? x : 0.0f) - x * t) + static_cast<double>(tail);
}

// Block: sums kBlock losses.
OFSDP_CUDA_KERNEL sum_blocks(MeanLoss kind, const float* x, const float* t, int64_t n,
                             double* partials) {
  __shared__ double spare[kThreads / kWarp];
  const int64_t begin = int64_t{blockIdx.x} * kBlock;
  const int64_t end = begin + kBlock < n ? begin + kBlock : n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    sum += element_loss(kind, x[i], t[i]);
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// One block: sums the partial sums and divides by n.
OFSDP_CUDA_KERNEL add_blocks(const double* partials, int64_t count, int64_t n, float* loss) {
  __shared__ double spare[kThreads / kWarp];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  if (threadIdx.x == 0) *loss = n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
}

OFSDP_CUDA_KERNEL gradient_kernel(MeanLoss kind, const float* diff_loss, const float* x,
                                  const float* t, int64_t n, float* gradient) {
  OFSDP_CUDA_ITEM(i, n);
  const float scale = *diff_loss / static_cast<float>(n);
  gradient[i] = kind == MeanLoss::kSquares ? 2.0f * scale * (x[i] - t[i])
                                           : scale * (sigmoid_of<DeviceMath>(x[i]) - t[i]);
}

}  // namespace

size_t mean_loss_scratch(int64_t numel) {
  return round_up(static_cast<size_t>(blocks_for(numel, kBlock)) * sizeof(double));
}

cudaError_t mean_loss(MeanLoss kind, const float* prediction, const float* target, int64_t numel,
                      float* loss, void* scratch, cudaStream_t stream) {
  auto* partials = static_cast<double*>(scratch);
  const int64_t blocks = blocks_for(numel, kBlock);
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks, kThreads, sum_blocks, kind, prediction, target,
                               numel, partials));
  return launch_blocks(stream, 1, kThreads, add_blocks, partials, blocks, numel, loss);
}

cudaError_t mean_loss_grad(MeanLoss kind, const float* diff_loss, const float* prediction,
                           const float* target, int64_t numel, float* gradient,
                           cudaStream_t stream) {
  return over(numel, stream, gradient_kernel, kind, diff_loss, prediction, target, numel, gradient);
}

}  // namespace ofsdp::kernels::cuda
