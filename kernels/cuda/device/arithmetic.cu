// The arithmetic of a step that is no node: the update's numbers, gathers and sums of gradients, the
// norm, clipping. Memory-bound loops over the flat units; every operation rounds once, as on the CPU
// (this file is compiled without contraction).
//
// The norm has the same bits in every run: squares are summed in double over blocks of 4096 elements
// by one thread block each, in a tree of fixed shape, and the blocks in order by one thread.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>

#include "kernels/core/dtype.h"
#include "kernels/cuda/device/elements.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kNormBlock = 4096;
constexpr double kMostScale = 0x1p24, kLeastScale = 1;
constexpr int64_t kGrowthInterval = 2000;

__global__ void begin_kernel(ofsdp_run_state* s, const ofsdp_step_numbers* n, bool update,
                             bool scales) {
  if (update) {
    s->scale_used = scales ? s->loss_scale : 1.0;
    s->squared_norm = 0;
    s->global_norm = 0;
    s->skip = 0;
    s->optimizer_step = s->steps_before + n->step + 1 - s->skipped_updates;
    s->gradient_factor = 1.0f;
  }
  s->loss_weight = n->loss_share * static_cast<float>(s->scale_used);
}

__global__ void note_loss_kernel(ofsdp_run_state* s, const float* loss, bool stops) {
  s->loss = *loss;
  if (stops && (isnan(*loss) || s->fault.node != 0)) s->stop = 1;
}

template <typename From, typename To>
__global__ void convert_kernel(const From* src, To* dst, int64_t n) {
  OFSDP_CUDA_LOOP(i, n) dst[i] = narrow<To>(widen(src[i]));
}

template <typename From>
__global__ void add_kernel(const From* src, float* dst, int64_t n) {
  OFSDP_CUDA_LOOP(i, n) dst[i] += widen(src[i]);
}

template <typename To>
__global__ void round_kernel(float* values, int64_t n) {
  OFSDP_CUDA_LOOP(i, n) values[i] = widen(narrow<To>(values[i]));
}

template <typename From>
__global__ void reduce_kernel(ofsdp_reduce r) {
  OFSDP_CUDA_LOOP(i, r.count) r.dst[i] = gradient_at<From>(r.gradient, i);
}

// The squares of elements [block * 4096, ...) that lie in the norm's range.
template <typename From>
__global__ void squares_kernel(ofsdp_reduce r) {
  __shared__ double sums[256];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormBlock;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < begin + kNormBlock && i < r.count; i += blockDim.x) {
    if (i < r.norm_first || i >= r.norm_first + r.norm_count) continue;
    const double g = gradient_at<From>(r.gradient, i);
    sum += g * g;
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) r.partials[blockIdx.x] = sums[0];
}

// One block: 256 runs of neighbouring partials, then a tree of fixed shape.
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

// runtime/engine/loss_scale.h and torch.nn.utils.clip_grad_norm_.
__global__ void clip_kernel(ofsdp_run_state* s, double most, bool scales) {
  s->global_norm = sqrt(s->squared_norm) / s->scale_used;
  float factor = 1.0f;
  if (most > 0) {
    factor = fminf(static_cast<float>(most) / (static_cast<float>(s->global_norm) + 1e-6f), 1.0f);
  }
  s->gradient_factor = factor / static_cast<float>(s->scale_used);
  if (!scales) return;
  s->skip = isfinite(s->global_norm) ? 0 : 1;
  if (s->skip != 0) {
    s->loss_scale = fmax(s->loss_scale / 2, kLeastScale);
    s->good_updates = 0;
    ++s->skipped_updates;
  } else if (++s->good_updates == kGrowthInterval) {
    s->loss_scale = fmin(s->loss_scale * 2, kMostScale);
    s->good_updates = 0;
  }
}

int32_t begin(ofsdp_device* device, ofsdp_stream* stream, ofsdp_run_state* state,
              const ofsdp_step_numbers* numbers, int32_t update, int32_t scales) {
  begin_kernel<<<1, 1, 0, raw(stream)>>>(state, numbers, update != 0, scales != 0);
  return launched(device, "begin");
}

int32_t note_loss(ofsdp_device* device, ofsdp_stream* stream, ofsdp_run_state* state,
                  const float* loss, int32_t stops) {
  note_loss_kernel<<<1, 1, 0, raw(stream)>>>(state, loss, stops != 0);
  return launched(device, "note_loss");
}

int32_t convert(ofsdp_device* device, ofsdp_stream* stream, const void* src, int32_t from,
                void* dst, int32_t to, int64_t n) {
  if (n == 0 || (src == dst && from == to)) return 0;
  if (from == to) {
    const size_t bytes = static_cast<size_t>(n) * dtype_size(static_cast<DType>(from));
    return failed(device, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, raw(stream)),
                  "convert");
  }
  const bool known = with_float_type(from, [&](auto f) {
    with_float_type(to, [&](auto t) {
      using From = decltype(f);
      using To = decltype(t);
      convert_kernel<<<blocks(n), kThreads, 0, raw(stream)>>>(static_cast<const From*>(src),
                                                              static_cast<To*>(dst), n);
    });
  });
  return known ? launched(device, "convert") : unknown_type(device, "convert");
}

int32_t add(ofsdp_device* device, ofsdp_stream* stream, const void* src, int32_t from, float* dst,
            int64_t n) {
  if (n == 0) return 0;
  const bool known = with_float_type(from, [&](auto f) {
    add_kernel<<<blocks(n), kThreads, 0, raw(stream)>>>(static_cast<const decltype(f)*>(src), dst,
                                                        n);
  });
  return known ? launched(device, "add") : unknown_type(device, "add");
}

int32_t round_values(ofsdp_device* device, ofsdp_stream* stream, float* values, int32_t to,
                     int64_t n) {
  if (n == 0 || to == static_cast<int32_t>(DType::kFloat32)) return 0;
  const bool known = with_float_type(to, [&](auto t) {
    round_kernel<decltype(t)><<<blocks(n), kThreads, 0, raw(stream)>>>(values, n);
  });
  return known ? launched(device, "round") : unknown_type(device, "round");
}

int32_t reduce(ofsdp_device* device, ofsdp_stream* stream, const ofsdp_reduce* r) {
  if (r->count == 0) return 0;
  const int64_t partials = (r->count + kNormBlock - 1) / kNormBlock;
  const bool known = with_float_type(r->gradient.dtype, [&](auto f) {
    using From = decltype(f);
    if (r->norm_count > 0) {
      squares_kernel<From><<<static_cast<unsigned>(partials), 256, 0, raw(stream)>>>(*r);
      sum_partials_kernel<<<1, 256, 0, raw(stream)>>>(r->partials, partials, r->state);
    }
    if (r->dst != nullptr) {
      reduce_kernel<From><<<blocks(r->count), kThreads, 0, raw(stream)>>>(*r);
    }
  });
  return known ? launched(device, "reduce") : unknown_type(device, "reduce");
}

int32_t clip(ofsdp_device* device, ofsdp_stream* stream, ofsdp_run_state* state, double most,
             int32_t scales) {
  clip_kernel<<<1, 1, 0, raw(stream)>>>(state, most, scales != 0);
  return launched(device, "clip");
}

}  // namespace

void add_arithmetic(ofsdp_device_table& table) {
  table.begin = begin;
  table.note_loss = note_loss;
  table.convert = convert;
  table.add = add;
  table.round = round_values;
  table.reduce = reduce;
  table.clip = clip;
  add_optimizers(table);
}

}  // namespace ofsdp::kernels::cuda
