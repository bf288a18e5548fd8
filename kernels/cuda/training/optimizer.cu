// One pass over the shard: four elements a thread, every tensor read and written once.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/training/optimizer_math.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct View {
  OptimizerSettings settings;
  double weight_decay;
  float *param, *a, *b;
  void* copy;
  DType copy_dtype;
  int64_t numel;
  const StepInput* input;
  const UpdateState* state;
};

template <int V>
__device__ inline void store_copy(const View& u, int64_t i, const float* p) {
  if (u.copy_dtype == DType::kBFloat16) store<V>(static_cast<__nv_bfloat16*>(u.copy) + i, p);
  if (u.copy_dtype == DType::kFloat16) store<V>(static_cast<__half*>(u.copy) + i, p);
  if (u.copy_dtype == DType::kFloat32) store<V>(static_cast<float*>(u.copy) + i, p);
}

template <OptimizerKind kind, typename G, int V>
__global__ void __launch_bounds__(kThreads) update_kernel(View u, const G* gradient) {
  __shared__ Factors shared;
  if (u.state->skip != 0) return;
  if (threadIdx.x == 0) {
    constexpr bool kCorrected = kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam;
    shared = factors_of(u.settings, u.weight_decay, u.input->lr,
                        u.input->step - u.state->skipped_updates, kCorrected);
  }
  __syncthreads();
  const Factors f = shared;
  const float factor = u.state->gradient_factor;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= u.numel) return;
  float p[V], g[V], a[V] = {}, b[V] = {};
  load<V>(u.param + i, p);
  load<V>(gradient + i, g);
  if (u.a != nullptr) load<V>(u.a + i, a);
  if (u.b != nullptr) load<V>(u.b + i, b);
#pragma unroll
  for (int k = 0; k < V; ++k) update_element<kind>(f, p[k], times(g[k], factor), a[k], b[k]);
  store<V>(u.param + i, p);
  if (u.a != nullptr) store<V>(u.a + i, a);
  if (u.b != nullptr) store<V>(u.b + i, b);
  if (u.copy != nullptr) store_copy<V>(u, i, p);
}

template <OptimizerKind kind, typename G>
cudaError_t update_as(const OptimizerUpdate& u, cudaStream_t stream) {
  const bool sgd = kind == OptimizerKind::kSgd && u.settings.momentum == 0;
  const bool two = kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam ||
                   kind == OptimizerKind::kAdadelta;
  const View view{u.settings,
                  u.weight_decay,
                  u.param,
                  sgd ? nullptr : u.state[0],
                  two ? u.state[1] : nullptr,
                  u.copy,
                  u.copy_dtype,
                  u.numel,
                  u.input,
                  u.update_state};
  const auto* gradient = static_cast<const G*>(u.gradient);
  const bool packs = aligned16(u.numel, 4, view.param, view.a, view.b, u.gradient, u.copy);
  return packs ? launch_blocks(stream, blocks_for(u.numel, 4 * kThreads), kThreads,
                               update_kernel<kind, G, 4>, view, gradient)
               : launch_blocks(stream, blocks_for(u.numel, kThreads), kThreads,
                               update_kernel<kind, G, 1>, view, gradient);
}

}  // namespace

cudaError_t update(const OptimizerUpdate& u, cudaStream_t stream) {
  return with_float(u.gradient_dtype, [&](auto g) {
    using G = decltype(g);
    switch (u.kind) {
      case OptimizerKind::kAdamW:
        return update_as<OptimizerKind::kAdamW, G>(u, stream);
      case OptimizerKind::kAdam:
        return update_as<OptimizerKind::kAdam, G>(u, stream);
      case OptimizerKind::kSgd:
        return update_as<OptimizerKind::kSgd, G>(u, stream);
      case OptimizerKind::kAdadelta:
        return update_as<OptimizerKind::kAdadelta, G>(u, stream);
      case OptimizerKind::kAdagrad:
        return update_as<OptimizerKind::kAdagrad, G>(u, stream);
      default:
        return update_as<OptimizerKind::kLion, G>(u, stream);
    }
  });
}

}  // namespace ofsdp::kernels::cuda
