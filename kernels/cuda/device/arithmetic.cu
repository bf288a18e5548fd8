// Step arithmetic outside the graph: step numbers, gradient conversion and reduction, norm,
// clipping. The loops over flat units are memory-bound. Every operation rounds once, as on the CPU:
// CMake compiles this file without FMA contraction.
//
// The norm is reproducible: a thread block sums 4096 squares in double by a fixed tree, and one
// block adds the partial sums in a fixed order.
#include <cmath>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/elements.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kNormBlock = 4096;
constexpr double kMaxScale = 0x1p24, kMinScale = 1;
constexpr int64_t kGrowthInterval = 2000;

// One thread.
__global__ void begin_kernel(ofsdp_run_state* s, ofsdp_step_numbers* n, bool update, bool scales) {
  if (s->skipped_updates > n->skipped_updates) {
    n->lr = n->lr_if_skipped;
    n->factor = n->factor_if_skipped;
  }
  if (update) {
    s->scale_used = scales ? s->loss_scale : 1.0;
    s->squared_norm = 0;
    s->global_norm = 0;
    s->skip = 0;
    s->optimizer_step = s->steps_before + n->step + 1 - s->skipped_updates;
    s->gradient_factor = 1.0f;
  }
  for (int i = 0; i < OFSDP_MAX_LOSSES; ++i) {
    s->loss_weights[i] = n->loss_shares[i] * static_cast<float>(s->scale_used);
  }
}

__global__ void note_loss_kernel(ofsdp_run_state* s, int index, const float* loss, bool stops) {
  s->losses[index] = *loss;
  if (stops && (std::isnan(*loss) || s->fault.node != 0)) s->stop = 1;
}

// The next four: grid-stride loops over a span, four elements per thread and iteration.
template <typename From, typename To>
__global__ void convert_kernel(SpanPacks span, const From* src, To* dst) {
  for_span(span, [&]<int V>(int64_t i) {
    float values[V];
    load<V>(src + i, values);
    store<V>(dst + i, values);
  });
}

template <typename From>
__global__ void add_kernel(SpanPacks span, const From* src, float* dst) {
  for_span(span, [&]<int V>(int64_t i) {
    float values[V], more[V];
    load<V>(dst + i, values);
    load<V>(src + i, more);
    unrolled<V>([&](int k) { values[k] += more[k]; });
    store<V>(dst + i, values);
  });
}

template <typename To>
__global__ void round_kernel(SpanPacks span, float* all) {
  for_span(span, [&]<int V>(int64_t i) {
    float values[V];
    load<V>(all + i, values);
    unrolled<V>([&](int k) { values[k] = to_float(Stored<To>::from(values[k])); });
    store<V>(all + i, values);
  });
}

template <typename From>
__global__ void reduce_kernel(SpanPacks span, ofsdp_reduce r) {
  for_span(span, [&]<int V>(int64_t i) {
    float values[V];
    load_gradient<From, V>(r.gradient, i, values);
    store<V>(r.dst + i, values);
  });
}

// A block sums the squares of its 4096 elements that lie in the norm's range; shared memory holds
// one partial sum per thread.
template <typename From>
__global__ void squares_kernel(ofsdp_reduce r) {
  __shared__ double sums[256];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormBlock;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < begin + kNormBlock && i < r.count; i += blockDim.x) {
    if (i < r.norm_first || i >= r.norm_first + r.norm_count) continue;
    float value;
    load_gradient<From, 1>(r.gradient, i, &value);
    const double g = value;
    sum += g * g;
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) r.partials[blockIdx.x] = sums[0];
}

// One block. Each thread adds a contiguous run of partial sums; then the same tree.
__global__ void sum_partials_kernel(const double* partials, int64_t n, ofsdp_run_state* s) {
  __shared__ double sums[256];
  const int64_t run = (n + blockDim.x - 1) / blockDim.x;
  double sum = 0;
  for (int64_t i = threadIdx.x * run; i < (threadIdx.x + 1) * run && i < n; ++i) sum += partials[i];
  sums[threadIdx.x] = sum;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) s->squared_norm += sums[0];
}

// Loss scaling as in runtime/engine/loss_scale.h, clipping as torch.nn.utils.clip_grad_norm_.
__global__ void clip_kernel(ofsdp_run_state* s, double most, bool scales) {
  s->global_norm = sqrt(s->squared_norm) / s->scale_used;
  float factor = 1.0f;
  if (most > 0) {
    factor = fminf(static_cast<float>(most) / (static_cast<float>(s->global_norm) + 1e-6f), 1.0f);
  }
  s->gradient_factor = factor / static_cast<float>(s->scale_used);
  if (!scales) return;
  s->skip = std::isfinite(s->global_norm) ? 0 : 1;
  if (s->skip != 0) {
    s->loss_scale = fmax(s->loss_scale / 2, kMinScale);
    s->good_updates = 0;
    ++s->skipped_updates;
  } else if (++s->good_updates == kGrowthInterval) {
    s->loss_scale = fmin(s->loss_scale * 2, kMaxScale);
    s->good_updates = 0;
  }
}

// Tells the host how far the stream is, without synchronization.
__global__ void mark_kernel(int64_t* pinned, int64_t value) {
  *static_cast<volatile int64_t*>(pinned) = value;
  __threadfence_system();
}

}  // namespace

cudaError_t begin_update(ofsdp_run_state* state, ofsdp_step_numbers* numbers, bool update,
                         bool scales, cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, begin_kernel, state, numbers, update, scales);
}

cudaError_t note_loss(ofsdp_run_state* state, int index, const float* loss, bool stops,
                      cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, note_loss_kernel, state, index, loss, stops);
}

cudaError_t convert(const void* src, int32_t from, void* dst, int32_t to, int64_t n,
                    cudaStream_t stream) {
  if (n == 0 || (src == dst && from == to)) return cudaSuccess;
  if (from == to) {
    const size_t bytes = static_cast<size_t>(n) * dtype_size(static_cast<DType>(from));
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return with_float(static_cast<DType>(from), [&]<typename From>(From) {
    return with_float(static_cast<DType>(to), [&]<typename T>(T) {
      const auto* const source = static_cast<const From*>(src);
      auto* const target = static_cast<T*>(dst);
      return launch_over_span(split_span(n, source, target), stream, convert_kernel<From, T>,
                              source, target);
    });
  });
}

cudaError_t add_onto(const void* src, int32_t from, float* dst, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return with_float(static_cast<DType>(from), [&]<typename From>(From) {
    const auto* const source = static_cast<const From*>(src);
    return launch_over_span(split_span(n, source, dst), stream, add_kernel<From>, source, dst);
  });
}

cudaError_t round_values(float* values, int32_t to, int64_t n, cudaStream_t stream) {
  if (n == 0 || to == static_cast<int32_t>(DType::kFloat32)) return cudaSuccess;
  return with_float(static_cast<DType>(to), [&]<typename T>(T) {
    return launch_over_span(split_span(n, values), stream, round_kernel<T>, values);
  });
}

cudaError_t reduce_gradient(const ofsdp_reduce& r, cudaStream_t stream) {
  if (r.count == 0) return cudaSuccess;
  const int64_t partials = blocks_for(r.count, kNormBlock);
  return with_float(static_cast<DType>(r.gradient.dtype), [&]<typename From>(From) {
    if (r.norm_count > 0) {
      OFSDP_CUDA_TRY(launch_blocks(stream, partials, 256, squares_kernel<From>, r));
      OFSDP_CUDA_TRY(
          launch_blocks(stream, 1, 256, sum_partials_kernel, r.partials, partials, r.state));
    }
    if (r.dst == nullptr) return cudaSuccess;
    const auto* const source = static_cast<const From*>(r.gradient.src);
    return launch_over_span(split_span(r.count, source, r.gradient.onto, r.dst), stream,
                            reduce_kernel<From>, r);
  });
}

cudaError_t clip(ofsdp_run_state* state, double most, bool scales, cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, clip_kernel, state, most, scales);
}

cudaError_t mark(int64_t* pinned, int64_t value, cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, mark_kernel, pinned, value);
}

}  // namespace ofsdp::kernels::cuda
