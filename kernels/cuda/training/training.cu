// A thread per element, one pass. One thread per block computes the factors of the step in double,
// as the CPU does.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/training/training.h"

namespace ofsdp::kernels::cuda {
namespace {

struct Factors {
  float norm, keep, alpha, weight1, beta, weight2, rate, epsilon;
};

__device__ float f32(double value) { return static_cast<float>(value); }

template <Training kind>
__device__ Factors factors(const ops::TrainingAttributes& n, double rate, double updates) {
  Factors f{f32(n.norm), f32(1 - n.norm_post), f32(n.alpha), f32(1 - n.alpha),
            f32(n.beta), f32(1 - n.beta),      f32(rate),    f32(n.epsilon)};
  if (kind == Training::kAdam && updates > 0) {
    f.rate = f32(rate * sqrt(1 - pow(n.beta, updates)) / (1 - pow(n.alpha, updates)));
  }
  if (kind == Training::kAdagrad) f.rate = f32(rate / (1 + updates * n.decay));
  if (kind == Training::kMomentum && updates <= 0) f.beta = 1;
  return f;
}

// A thread per element; thread 0 of each block shares the step's factors.
template <Training kind>
OFSDP_CUDA_KERNEL update_kernel(ops::TrainingAttributes n, const float* rate,
                                const int64_t* updates, TrainingTensors t) {
  __shared__ Factors f;
  if (threadIdx.x == 0) f = factors<kind>(n, *rate, static_cast<double>(*updates));
  __syncthreads();
  OFSDP_CUDA_ITEM(i, t.count);
  const float x = t.x[i], g = f.norm * x + t.gradient[i], state = t.states[0][i];
  if (kind == Training::kAdam) {
    const float momentum = f.alpha * state + f.weight1 * g;
    const float square = f.beta * t.states[1][i] + f.weight2 * (g * g);
    t.new_states[0][i] = momentum;
    t.new_states[1][i] = square;
    t.new_x[i] = f.keep * (x - f.rate * momentum / (sqrtf(square) + f.epsilon));
  } else if (kind == Training::kAdagrad) {
    const float sum = state + g * g;
    t.new_states[0][i] = sum;
    t.new_x[i] = x - f.rate * g / (sqrtf(sum) + f.epsilon);
  } else {
    const float momentum = f.alpha * state + f.beta * g;
    t.new_states[0][i] = momentum;
    t.new_x[i] = x - f.rate * (n.nesterov ? g + f.alpha * momentum : momentum);
  }
}

}  // namespace

cudaError_t training_update(Training kind, const ops::TrainingAttributes& attributes,
                            const float* rate, const int64_t* updates,
                            const TrainingTensors& tensors, cudaStream_t stream) {
  const auto run = [&](auto kernel) {
    return over(tensors.count, stream, kernel, attributes, rate, updates, tensors);
  };
  if (kind == Training::kAdam) return run(update_kernel<Training::kAdam>);
  if (kind == Training::kAdagrad) return run(update_kernel<Training::kAdagrad>);
  return run(update_kernel<Training::kMomentum>);
}

}  // namespace ofsdp::kernels::cuda
