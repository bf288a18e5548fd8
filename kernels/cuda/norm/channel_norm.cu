// Sums per channel, then one pass over the elements. Plain layout: a block sums a chunk of one
// channel, consecutive threads at consecutive elements. Channels last: a block sums a chunk of 32
// channels, a warp's lanes at consecutive channels.
//
// Scratch: float rows mean, variance, slope and shift [channels] each, then double sums
// [2][chunks][channels].
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/norm/norm.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kRows = kThreads / kWarp;
constexpr int64_t kChunk = 4096;

struct Scratch {
  float *mean, *variance, *slope;  // slope: dscale in float32
  float* shift;                    // dbias in float32
  double* sums;
  float share;  // 1 / elements per channel, the factor of slope and shift in dx
};

int64_t chunks_of(const ChannelNormParams& e) { return blocks_for(e.samples * e.inner, kChunk); }

size_t floats_of(const ChannelNormParams& e) {
  return round_up(static_cast<size_t>(4 * e.channels) * sizeof(float));
}

Scratch scratch_of(const ChannelNormParams& e, void* scratch) {
  auto* floats = static_cast<float*>(scratch);
  return {floats,
          floats + e.channels,
          floats + 2 * e.channels,
          floats + 3 * e.channels,
          reinterpret_cast<double*>(static_cast<char*>(scratch) + floats_of(e)),
          1.0f / static_cast<float>(e.samples * e.inner)};
}

// Returns the offset of element j, 0 .. samples * inner - 1, of a channel.
__device__ inline int64_t offset(const ChannelNormParams& e, int64_t channel, int64_t j) {
  if (e.last) return j * e.channels + channel;
  const int64_t sample = j / e.inner;
  return (sample * e.channels + channel) * e.inner + (j - sample * e.inner);
}

// Iterates over the offsets of a channel's elements j, j + kThreads, ... without dividing for each.
class ChannelOffsets {
 public:
  __device__ ChannelOffsets(const ChannelNormParams& e, int64_t channel, int64_t j)
      : inner_(e.inner),
        samples_ahead_(kThreads / e.inner),
        ahead_(kThreads % e.inner),
        between_((e.channels - 1) * e.inner),
        in_sample_(j % e.inner),
        at_(offset(e, channel, j)) {}
  __device__ int64_t at() const { return at_; }
  __device__ void next() {
    in_sample_ += ahead_;
    int64_t samples = samples_ahead_;
    if (in_sample_ >= inner_) {
      in_sample_ -= inner_;
      ++samples;
    }
    at_ += kThreads + samples * between_;
  }

 private:
  int64_t inner_, samples_ahead_, ahead_, between_, in_sample_, at_;
};

// Terms of the two sums per channel.
//
// Differences from the channel's first element, so that a mean far from 0 does not cancel the
// variance.
template <typename T>
struct Moments {
  const T* x;
  ChannelNormParams e;
  __device__ void add(int64_t channel, int64_t at, double* sums) const {
    const double d = to_float(x[at]) - to_float(x[offset(e, channel, 0)]);
    sums[0] += d;
    sums[1] += d * d;
  }
};
template <typename T, typename S>
struct Slopes {
  const T *dy, *x;
  const S *mean, *variance;
  float epsilon;
  __device__ void add(int64_t channel, int64_t at, double* sums) const {
    const float d = to_float(dy[at]);
    const float inv = 1.0f / sqrtf(to_float(variance[channel]) + epsilon);
    sums[0] += d;
    sums[1] += static_cast<double>(d * ((to_float(x[at]) - to_float(mean[channel])) * inv));
  }
};

// Plain layout: a block per channel and chunk, a thread for every 256th element of the chunk.
// `spare` holds a partial sum per warp.
template <typename F>
OFSDP_CUDA_KERNEL sum_plain(ChannelNormParams e, F terms, int64_t chunks, double* sums) {
  __shared__ double spare[kRows];
  const int64_t channel = blockIdx.x % e.channels, chunk = blockIdx.x / e.channels;
  const int64_t count = e.samples * e.inner, begin = chunk * kChunk;
  const int64_t end = begin + kChunk < count ? begin + kChunk : count;
  double mine[2] = {};
  ChannelOffsets offsets(e, channel, begin + threadIdx.x);
  for (int64_t j = begin + threadIdx.x; j < end; j += kThreads, offsets.next()) {
    terms.add(channel, offsets.at(), mine);
  }
  for (int k = 0; k < 2; ++k) {
    const double sum = group_reduce<kThreads>(mine[k], Add{}, spare);
    if (threadIdx.x == 0) sums[(k * chunks + chunk) * e.channels + channel] = sum;
  }
}

// Channels last: a block per 32 channels and chunk. Lane = channel, warp = every 8th position;
// `rows` holds each warp's sums per channel (padded against bank conflicts), which warp 0 adds in
// order.
template <typename F>
OFSDP_CUDA_KERNEL sum_last(ChannelNormParams e, F terms, int64_t chunks, int64_t groups,
                           double* sums) {
  __shared__ double rows[2][kRows][kWarp + 1];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            row = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t channel = blockIdx.x % groups * kWarp + lane, chunk = blockIdx.x / groups;
  const int64_t count = e.samples * e.inner, begin = chunk * kChunk;
  const int64_t end = begin + kChunk < count ? begin + kChunk : count;
  double mine[2] = {};
  for (int64_t j = begin + row; j < end && channel < e.channels; j += kRows) {
    terms.add(channel, offset(e, channel, j), mine);
  }
  for (int k = 0; k < 2; ++k) rows[k][row][lane] = mine[k];
  __syncthreads();
  if (row != 0 || channel >= e.channels) return;
  for (int k = 0; k < 2; ++k) {
    double sum = 0;
    for (int r = 0; r < kRows; ++r) sum += rows[k][r][lane];
    sums[(k * chunks + chunk) * e.channels + channel] = sum;
  }
}

template <typename F>
cudaError_t sum_terms(const ChannelNormParams& e, const F& terms, double* sums,
                      cudaStream_t stream) {
  const int64_t chunks = chunks_of(e), groups = blocks_for(e.channels, kWarp);
  return e.last ? launch_blocks(stream, chunks * groups, kThreads, sum_last<F>, e, terms, chunks,
                                groups, sums)
                : launch_blocks(stream, chunks * e.channels, kThreads, sum_plain<F>, e, terms,
                                chunks, sums);
}

// to[channel] = sum k of the channel in float32; also rounds it to `stored` unless nullptr.
template <typename T>
OFSDP_CUDA_KERNEL add_chunks(int64_t channels, int64_t chunks, const double* sums, int k, float* to,
                             T* stored) {
  OFSDP_CUDA_ITEM(channel, channels);
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += sums[(k * chunks + c) * channels + channel];
  to[channel] = static_cast<float>(sum);
  if (stored != nullptr) stored[channel] = Stored<T>::from(to[channel]);
}

template <typename T>
cudaError_t finish(const ChannelNormParams& e, const Scratch& s, int k, float* to, void* stored,
                   cudaStream_t stream) {
  return over(e.channels, stream, add_chunks<T>, e.channels, chunks_of(e), s.sums, k, to, stored);
}

struct MeanAndVariance {
  double mean, variance;
};

// Mean and variance from the sums of Moments.
template <typename T>
__device__ inline MeanAndVariance moments_of(const ChannelNormParams& e, int64_t chunks, const T* x,
                                             const double* all, int64_t channel) {
  double sums[2] = {};
  unrolled<2>([&](int k) {  // a computed index would put sums into local memory
    for (int64_t c = k * chunks; c < (k + 1) * chunks; ++c) {
      sums[k] += all[c * e.channels + channel];
    }
  });
  const int64_t count = e.samples * e.inner;
  const double share = 1.0 / static_cast<double>(count > 0 ? count : 1);
  const double first = count > 0 ? to_float(x[offset(e, channel, 0)]) : 0;
  const double off = sums[0] * share, variance = sums[1] * share - off * off;
  return {first + off, variance < 0 ? 0 : variance};
}

// A thread per channel.
template <typename T>
OFSDP_CUDA_KERNEL finish_moments(ChannelNormParams e, int64_t chunks, const T* x, Scratch s) {
  OFSDP_CUDA_ITEM(channel, e.channels);
  const MeanAndVariance moments = moments_of(e, chunks, x, s.sums, channel);
  s.mean[channel] = static_cast<float>(moments.mean);
  s.variance[channel] = static_cast<float>(moments.variance);
}

// Writes a rank's contribution: elements per channel, means, sums of squared differences.
template <typename T>
OFSDP_CUDA_KERNEL finish_statistics(ChannelNormParams e, int64_t chunks, const T* x,
                                    const double* sums, float* y) {
  OFSDP_CUDA_ITEM(channel, e.channels);
  const MeanAndVariance moments = moments_of(e, chunks, x, sums, channel);
  const auto count = static_cast<float>(e.samples * e.inner);
  if (channel == 0) y[0] = count;
  y[1 + channel] = static_cast<float>(moments.mean);
  y[1 + e.channels + channel] = static_cast<float>(moments.variance * static_cast<double>(count));
}

// Chan's formula, in rank order.
OFSDP_CUDA_KERNEL join_statistics(JoinedStatistics s) {
  OFSDP_CUDA_ITEM(c, s.channels);
  double count = 0, middle = 0, sum = 0;
  for (int64_t r = 0; r < s.rows.ranks; ++r) {
    if (rows_of(s.rows, r) == 0) continue;
    const float* const row = row_of(s.rows, r);
    const double n = row[0], far = row[1 + c] - middle;
    sum += row[1 + s.channels + c] + far * far * count * n / (count + n);
    middle += far * n / (count + n);
    count += n;
  }
  const bool any = count > 0;
  const float mean = any ? static_cast<float>(middle) : s.running_mean[c];
  const float variance = any ? static_cast<float>(sum / count) : s.running_variance[c];
  const auto put = [&](float* to, float value) {
    if (to != nullptr) to[c] = value;
  };
  const auto next = [&](float before, float now) {
    return any ? before * s.momentum + now * (1.0f - s.momentum) : before;
  };
  put(s.next_mean, next(s.running_mean[c], mean));
  put(s.next_variance, next(s.running_variance[c], variance));
  put(s.mean, mean);
  put(s.variance, variance);
}

// dbias and dscale over all ranks, divided by the element count.
OFSDP_CUDA_KERNEL join_dots(int64_t channels, GatheredRows statistics, GatheredRows dots,
                            Scratch s) {
  OFSDP_CUDA_ITEM(c, channels);
  double count = 0, shift = 0, slope = 0;
  for (int64_t r = 0; r < statistics.ranks; ++r) {
    if (rows_of(statistics, r) > 0) count += *row_of(statistics, r);
    if (rows_of(dots, r) == 0) continue;
    shift += row_of(dots, r)[c];
    slope += row_of(dots, r)[channels + c];
  }
  const double share = count > 0 ? 1 / count : 0;
  s.shift[c] = static_cast<float>(shift * share);
  s.slope[c] = static_cast<float>(slope * share);
}

// Picks the statistics that normalize x, and stores running and batch statistics.
template <typename S>
OFSDP_CUDA_KERNEL resolve_kernel(ChannelNorm n, Scratch s) {
  OFSDP_CUDA_ITEM(c, n.extent.channels);
  const float mean = to_float(static_cast<const S*>(n.mean)[c]);
  const float variance = to_float(static_cast<const S*>(n.variance)[c]);
  if (!n.training) {
    s.mean[c] = mean;
    s.variance[c] = variance;
  }
  const auto put = [&](void* to, float value) {
    if (to != nullptr) static_cast<S*>(to)[c] = Stored<S>::from(value);
  };
  put(n.running_mean, mean * n.momentum + s.mean[c] * (1.0f - n.momentum));
  put(n.running_variance, variance * n.momentum + s.variance[c] * (1.0f - n.momentum));
  put(n.batch_mean, s.mean[c]);
  put(n.batch_variance, s.variance[c]);
}

__device__ inline int64_t channel_of(const ChannelNormParams& e, int64_t i) {
  return e.last ? i % e.channels : i / e.inner % e.channels;
}

// A thread handles V adjacent elements: of one channel, or of V channels if channels are last. The
// FMAs are explicit, because the compiler contracted the packed version and not the scalar one,
// which gave different bits.
template <typename T, int V>
OFSDP_CUDA_KERNEL apply_kernel(ChannelNorm n, Scratch s) {
  const ChannelNormParams& e = n.extent;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= e.samples * e.channels * e.inner) return;
  const int64_t first = channel_of(e, i);
  float v[V];
  load<V>(static_cast<const T*>(n.x) + i, v);
  unrolled<V>([&](int k) {
    const int64_t c = e.last ? first + k : first;
    const float factor =
        to_float(static_cast<const T*>(n.scale)[c]) / sqrtf(s.variance[c] + n.epsilon);
    v[k] = fmaf(v[k] - s.mean[c], factor, to_float(static_cast<const T*>(n.bias)[c]));
  });
  store<V>(static_cast<T*>(n.y) + i, v);
}

// A thread per dx pack or element.
template <typename T, typename S, int V>
OFSDP_CUDA_KERNEL gradient_kernel(ChannelNormGradient n, Scratch s) {
  const ChannelNormParams& e = n.extent;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= e.samples * e.channels * e.inner) return;
  const int64_t first = channel_of(e, i);
  const auto of = [&](const void* values, int64_t at) {
    return to_float(static_cast<const T*>(values)[at]);
  };
  const auto stat = [](const void* values, int64_t c) {
    return to_float(static_cast<const S*>(values)[c]);
  };
  float d[V], v[V];
  load<V>(static_cast<const T*>(n.dy) + i, d);
  if (n.training) load<V>(static_cast<const T*>(n.x) + i, v);
  unrolled<V>([&](int k) {
    const int64_t c = e.last ? first + k : first;
    const float inv = 1.0f / sqrtf(stat(n.variance, c) + n.epsilon);
    float through = 0;
    if (n.training) {
      const float h = (v[k] - stat(n.mean, c)) * inv;
      through = fmaf(h, s.slope[c], s.shift[c]);
    }
    d[k] = of(n.scale, c) * inv * fmaf(-s.share, through, d[k]);
  });
  store<V>(static_cast<T*>(n.dx) + i, d);
}

// Uses packs if the last axis (channels or positions) is a multiple of the pack.
template <typename T, typename N, typename... P>
cudaError_t over_elements(void (*packs)(N, Scratch), void (*singly)(N, Scratch), const N& n,
                          const Scratch& s, cudaStream_t stream, const P*... pointers) {
  const ChannelNormParams& e = n.extent;
  const int64_t elements = e.samples * e.channels * e.inner;
  const bool whole = aligned16(e.last ? e.channels : e.inner, sizeof(T), pointers...);
  return launch_over_packs<kPack<T>>(whole, elements, stream, packs, singly, n, s);
}

template <typename T, typename S>
cudaError_t norm_as(const ChannelNorm& n, cudaStream_t stream) {
  const ChannelNormParams& e = n.extent;
  const Scratch s = scratch_of(e, n.scratch);
  if (n.training) {
    const T* x = static_cast<const T*>(n.x);
    OFSDP_CUDA_TRY(sum_terms(e, Moments<T>{x, e}, s.sums, stream));
    OFSDP_CUDA_TRY(over(e.channels, stream, finish_moments<T>, e, chunks_of(e), x, s));
  }
  OFSDP_CUDA_TRY(over(e.channels, stream, resolve_kernel<S>, n, s));
  return over_elements<T>(apply_kernel<T, kPack<T>>, apply_kernel<T, 1>, n, s, stream, n.x, n.y);
}

// Stores dbias in `shift` and dscale in `slope`.
template <typename T, typename S>
cudaError_t dots_as(const ChannelNormGradient& n, float* shift, float* slope, cudaStream_t stream) {
  const ChannelNormParams& e = n.extent;
  const Scratch s = scratch_of(e, n.scratch);
  const Slopes<T, S> slopes{static_cast<const T*>(n.dy), static_cast<const T*>(n.x),
                            static_cast<const S*>(n.mean), static_cast<const S*>(n.variance),
                            n.epsilon};
  OFSDP_CUDA_TRY(sum_terms(e, slopes, s.sums, stream));
  OFSDP_CUDA_TRY(finish<T>(e, s, 0, shift, n.dbias, stream));
  return finish<T>(e, s, 1, slope, n.dscale, stream);
}

template <typename T, typename S>
cudaError_t dx_as(const ChannelNormGradient& n, const Scratch& s, cudaStream_t stream) {
  return over_elements<T>(gradient_kernel<T, S, kPack<T>>, gradient_kernel<T, S, 1>, n, s, stream,
                          n.dy, n.x, n.dx);
}

template <typename T, typename S>
cudaError_t grad_as(const ChannelNormGradient& n, cudaStream_t stream) {
  const Scratch s = scratch_of(n.extent, n.scratch);
  OFSDP_CUDA_TRY((dots_as<T, S>(n, s.shift, s.slope, stream)));
  return n.dx == nullptr ? cudaSuccess : dx_as<T, S>(n, s, stream);
}

// Calls f(T{}, S{}) with the element and statistics types.
template <typename F>
cudaError_t with_types(const ChannelNormParams& e, const F& f) {
  return with_float(e.dtype, [&](auto t) {
    if (e.stats == e.dtype) return f(t, t);
    return e.stats == DType::kFloat32 ? f(t, float{}) : cudaErrorNotSupported;
  });
}

}  // namespace

size_t channel_norm_scratch(const ChannelNormParams& e) {
  return floats_of(e) + static_cast<size_t>(2 * chunks_of(e) * e.channels) * sizeof(double);
}

cudaError_t channel_norm(const ChannelNorm& n, cudaStream_t stream) {
  return with_types(n.extent,
                    [&]<typename T, typename S>(T, S) { return norm_as<T, S>(n, stream); });
}

cudaError_t channel_norm_grad(const ChannelNormGradient& n, cudaStream_t stream) {
  return with_types(n.extent,
                    [&]<typename T, typename S>(T, S) { return grad_as<T, S>(n, stream); });
}

cudaError_t channel_statistics(const ChannelNormParams& e, const void* x, float* y, void* scratch,
                               cudaStream_t stream) {
  return with_float(e.dtype, [&]<typename T>(T) {
    const Scratch s = scratch_of(e, scratch);
    const T* const from = static_cast<const T*>(x);
    OFSDP_CUDA_TRY(sum_terms(e, Moments<T>{from, e}, s.sums, stream));
    return over(e.channels, stream, finish_statistics<T>, e, chunks_of(e), from, s.sums, y);
  });
}

cudaError_t joined_statistics(const JoinedStatistics& s, cudaStream_t stream) {
  return over(s.channels, stream, join_statistics, s);
}

cudaError_t channel_dots(const ChannelNormGradient& n, float* sums, cudaStream_t stream) {
  return with_types(n.extent, [&]<typename T, typename S>(T, S) {
    return dots_as<T, S>(n, sums, sums + n.extent.channels, stream);
  });
}

cudaError_t joined_gradient(const ChannelNormGradient& n, const GatheredRows& statistics,
                            const GatheredRows& dots, cudaStream_t stream) {
  Scratch s = scratch_of(n.extent, n.scratch);
  s.share = 1;
  OFSDP_CUDA_TRY(
      over(n.extent.channels, stream, join_dots, n.extent.channels, statistics, dots, s));
  return with_types(n.extent,
                    [&]<typename T, typename S>(T, S) { return dx_as<T, S>(n, s, stream); });
}

}  // namespace ofsdp::kernels::cuda
