// Sums of gradients, their norm and the numbers of the update.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/training/optimizer_math.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostPartials = 1056;   // eight blocks for each of 132 processors
constexpr int64_t kPartialBlock = 16384;  // elements at least, of a partial

__global__ void loss_weight_kernel(const StepInput* input, const UpdateState* state, float* out) {
  *out = input->loss_weight * static_cast<float>(state->loss_scale);
}

__device__ inline float rounded(float v, DType to) {
  if (to == DType::kBFloat16) return to_float(Stored<__nv_bfloat16>::from(v));
  return to == DType::kFloat16 ? to_float(Stored<__half>::from(v)) : v;
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads) sum_kernel(GradientSum s) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= s.numel) return;
  float sum[V], more[V];
  load<V>(static_cast<const T*>(s.slots[0]) + i, sum);
  for (int r = 1; r < s.count; ++r) {
    load<V>(static_cast<const T*>(s.slots[r]) + i, more);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += more[k];
  }
#pragma unroll
  for (int k = 0; k < V; ++k) sum[k] = rounded(sum[k], s.round_to);
  if (s.kept != nullptr) {
    load<V>(s.kept + i, more);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += more[k];
  }
  store<V>(s.out + i, sum);
}

// Partial b: packs b * kThreads + thread, and so on, gridDim.x * kThreads apart.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const T* gradient, int64_t packs, double* partials) {
  __shared__ double spare[kThreads / kWarp];
  double sum = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < packs; p += step) {
    float v[V];
    load<V>(gradient + p * V, v);
#pragma unroll
    for (int k = 0; k < V; ++k) sum += static_cast<double>(v[k]) * static_cast<double>(v[k]);
  }
  sum = group_fold<kThreads>(sum, Add{}, spare);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(const double* partials, int64_t count, double* out) {
  __shared__ double spare[kThreads / kWarp];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = group_fold<kThreads>(sum, Add{}, spare);
  if (threadIdx.x == 0) *out = sum;
}

__global__ void finish_kernel(const double* squares, int ranks, double clip_norm, bool scale_loss,
                              UpdateState* state) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r) sum += squares[r];
  finish_norm_of(sum, clip_norm, scale_loss, *state);
}

}  // namespace

cudaError_t put_loss_weight(const StepInput* input, const UpdateState* state, float* loss_weight,
                            cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, loss_weight_kernel, input, state, loss_weight);
}

cudaError_t sum_gradients(const GradientSum& s, cudaStream_t stream) {
  if (s.count < 1 || s.count > kMostSlots) return cudaErrorNotSupported;
  return with_float(s.dtype, [&](auto t) {
    using T = decltype(t);
    bool packs = aligned16(s.numel, 4, s.kept, s.out);
    for (int r = 0; r < s.count; ++r) packs = packs && aligned16(0, 4, s.slots[r]);
    return packs ? launch_blocks(stream, blocks_for(s.numel, 4 * kThreads), kThreads,
                                 sum_kernel<T, 4>, s)
                 : launch_blocks(stream, blocks_for(s.numel, kThreads), kThreads, sum_kernel<T, 1>,
                                 s);
  });
}

int64_t squared_norm_partials(int64_t numel) {
  return std::clamp<int64_t>(blocks_for(numel, kPartialBlock), 1, kMostPartials);
}

// The order of the sum follows from the alignment too; of the arena it is always the same.
cudaError_t squared_norm(DType dtype, const void* gradient, int64_t numel, double* partials,
                         cudaStream_t stream) {
  return with_float(dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = kPack<T>;
    const T* from = static_cast<const T*>(gradient);
    const int64_t blocks = squared_norm_partials(numel);
    return aligned16(numel, sizeof(T), gradient)
               ? launch_blocks(stream, blocks, kThreads, squares_kernel<T, V>, from, numel / V,
                               partials)
               : launch_blocks(stream, blocks, kThreads, squares_kernel<T, 1>, from, numel,
                               partials);
  });
}

cudaError_t add_partials(const double* partials, int64_t count, double* out, cudaStream_t stream) {
  return launch_blocks(stream, 1, kThreads, add_kernel, partials, count, out);
}

cudaError_t finish_norm(const double* squares, int ranks, double clip_norm, bool scale_loss,
                        UpdateState* state, cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, finish_kernel, squares, ranks, clip_norm, scale_loss, state);
}

}  // namespace ofsdp::kernels::cuda
