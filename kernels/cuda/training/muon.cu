// Muon: norms in double over fixed blocks, and the step. --fmad=false keeps the CPU's roundings.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/optimizers/updates.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kStretch = 4096;  // elements per block

// A block sums the squares of 4096 elements.
OFSDP_CUDA_KERNEL value_squares(const float* values, int64_t count, double* partials) {
  __shared__ double spare[kThreads / kWarp];
  const int64_t begin = int64_t{blockIdx.x} * kStretch;
  const int64_t end = begin + kStretch < count ? begin + kStretch : count;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double value = values[i];
    sum += value * value;
  }
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// One block adds the partials; the norm is at least `least`.
OFSDP_CUDA_KERNEL norm_of_squares(const double* partials, int64_t blocks, double least,
                                  double* norm) {
  __shared__ double spare[kThreads / kWarp];
  double sum = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) sum += partials[b];
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  if (threadIdx.x != 0) return;
  const double root = sqrt(sum);
  *norm = root < least ? least : root;
}

// A thread per element.
OFSDP_CUDA_KERNEL divide_kernel(float* values, int64_t count, const double* norm) {
  OFSDP_CUDA_ITEM(i, count);
  values[i] = values[i] / static_cast<float>(*norm);
}

// A thread per element.
OFSDP_CUDA_KERNEL scale_kernel(float* values, int64_t count, float by) {
  OFSDP_CUDA_ITEM(i, count);
  values[i] = values[i] * by;
}

struct Step {
  float* param;  // first element of the part, as `direction`
  const float* direction;
  int64_t count;
  double weight_decay, adjust;
  const ofsdp_run_state* state;
  const ofsdp_step_numbers* numbers;
  double base_lr;
};

// A thread per element.
OFSDP_CUDA_KERNEL muon_step(Step s) {
  OFSDP_CUDA_ITEM(i, s.count);
  if (s.state->skip != 0 || s.state->stop != 0) return;
  const double lr = updates::rate_of(*s.numbers, s.base_lr);
  const float keep = s.weight_decay != 0 ? updates::f32(1 - lr * s.weight_decay) : 1.0f;
  s.param[i] = s.param[i] * keep - updates::f32(lr * s.adjust) * s.direction[i];
}

}  // namespace

cudaError_t normalize(float* values, int64_t count, double least, double* scratch,
                      cudaStream_t stream) {
  const int64_t blocks = blocks_for(count, kStretch);
  OFSDP_CUDA_TRY(
      launch_blocks(stream, blocks, kThreads, value_squares, values, count, scratch + 1));
  OFSDP_CUDA_TRY(
      launch_blocks(stream, 1, kThreads, norm_of_squares, scratch + 1, blocks, least, scratch));
  return over(count, stream, divide_kernel, values, count, scratch);
}

cudaError_t scale(float* values, int64_t count, float by, cudaStream_t stream) {
  return over(count, stream, scale_kernel, values, count, by);
}

cudaError_t take_muon_step(const OptimizerSettings&, const ofsdp_parameter_parts& p,
                           cudaStream_t stream) {
  for (int64_t i = 0; i < p.num_parts; ++i) {
    const ofsdp_parameter_part& part = p.parts[i];
    const Step step{p.param + part.begin,
                    p.gradient + part.begin,
                    part.count,
                    part.weight_decay,
                    part.adjust,
                    p.state,
                    p.numbers,
                    p.base_lr};
    OFSDP_CUDA_TRY(over(part.count, stream, muon_step, step));
  }
  return cudaSuccess;
}

}  // namespace ofsdp::kernels::cuda
