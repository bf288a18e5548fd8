// Layer and RMS normalization. Up to 1024 elements a warp handles a row, up to 8192 a block of 256
// threads, each with at most 32 elements in registers; for longer rows a block loops and reads the
// row again from the cache. The backward pass sums columns in registers, since a thread sees the
// same columns in many rows; then over the block's warps in shared memory; then over the blocks in
// add_partials.
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/rows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

template <typename T>
__device__ inline const T* at(const void* base, int64_t i) {
  return static_cast<const T*>(base) + i;
}
template <typename T>
__device__ inline T* at(void* base, int64_t i) {
  return static_cast<T*>(base) + i;
}

template <int V, typename T>
__device__ inline void add_pack(const void* from, int64_t i, float* to) {
  float more[V];
  load<V>(at<T>(from, i), more);
  unrolled<V>([&](int k) { to[k] += more[k]; });
}

// Adds residual and residual_bias to V elements of x, from `column` on.
template <int V, typename T>
__device__ inline void add_to_x(const NormForward& n, int64_t row, int64_t column, float* to) {
  if (n.residual != nullptr) {
    add_pack<V, T>(n.residual, row % n.residual_rows * n.width + column, to);
  }
  if (n.residual_bias != nullptr) add_pack<V, T>(n.residual_bias, column, to);
}

template <int V, typename T>
__device__ inline void write_pack(const NormForward& n, int64_t row, int64_t column, float* s,
                                  float mean, float inv) {
  if (n.sum != nullptr) store<V>(at<T>(n.sum, row * n.width + column), s);
  unrolled<V>([&](int k) { s[k] = (s[k] - mean) * inv; });
  float other[V];
  if (n.scale != nullptr) {
    load<V>(at<T>(n.scale, column), other);
    unrolled<V>([&](int k) { s[k] *= other[k]; });
  }
  if (n.bias != nullptr) {
    load<V>(at<T>(n.bias, column), other);
    unrolled<V>([&](int k) { s[k] += other[k]; });
  }
  store<V>(at<T>(n.y, row * n.width + column), s);
}

__device__ inline void write_stats(const NormForward& n, int64_t row, float mean, float inv) {
  if (n.mean != nullptr) n.mean[row] = mean;
  if (n.inv != nullptr) n.inv[row] = inv;
}

// G threads hold a row: E elements each, in packs of V.
template <typename T, int V, int E, int G>
OFSDP_CUDA_KERNEL forward_held(NormForward n) {
  __shared__ float spare[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % G;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / G) + threadIdx.x / G;
  const bool in_range = row < n.rows;  // uniform over a group's lanes
  const int64_t width = in_range ? n.width : 0;
  const T* const x = at<T>(n.x, row * n.width);
  Held<T, V, E> held;
  held.template load_from<G>(x, width, lane);
  float s[E];
  float total = 0;
  for_packs<V, E, G>(width, lane, [&](int first, int64_t column) {
    held.get(first, x + column, s + first);
    add_to_x<V, T>(n, row, column, s + first);
    unrolled<V>([&](int k) { total += s[first + k]; });
  });
  const float count = static_cast<float>(n.width);
  const float mean = n.centred ? group_reduce<G>(total, Add{}, spare) / count : 0.0f;
  float squares = 0;
  for_packs<V, E, G>(width, lane, [&](int first, int64_t) {
    unrolled<V>([&](int k) { squares += (s[first + k] - mean) * (s[first + k] - mean); });
  });
  const float variance = group_reduce<G>(squares, Add{}, spare) / count;
  const float inv = 1.0f / sqrtf(variance + n.epsilon);
  if (!in_range) return;
  if (lane == 0) write_stats(n, row, mean, inv);
  for_packs<V, E, G>(width, lane, [&](int first, int64_t column) {
    write_pack<V, T>(n, row, column, s + first, mean, inv);
  });
}

// Rows longer than 8192: a block per row, each thread every 256th element, in three
// passes.
template <typename T>
OFSDP_CUDA_KERNEL forward_long(NormForward n) {
  __shared__ float spare[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  const float count = fmaxf(static_cast<float>(n.width), 1.0f);
  float total = 0, s[1];
  const auto load_sum = [&](int64_t c) {
    load<1>(at<T>(n.x, row * n.width + c), s);
    add_to_x<1, T>(n, row, c, s);
  };
  for (int64_t c = threadIdx.x; c < n.width; c += kThreads) {
    load_sum(c);
    total += s[0];
  }
  const float mean = n.centred ? group_reduce<kThreads>(total, Add{}, spare) / count : 0.0f;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < n.width; c += kThreads) {
    load_sum(c);
    squares += (s[0] - mean) * (s[0] - mean);
  }
  const float variance = group_reduce<kThreads>(squares, Add{}, spare) / count;
  const float inv = 1.0f / sqrtf(variance + n.epsilon);
  if (threadIdx.x == 0) write_stats(n, row, mean, inv);
  for (int64_t c = threadIdx.x; c < n.width; c += kThreads) {
    load_sum(c);
    write_pack<1, T>(n, row, c, s, mean, inv);
  }
}

// --- Backward ---

// __fadd_rn prevents contraction with the product before, so float32 sums have the bits of a
// separate pass.
template <int V, typename T>
__device__ inline void add_addend(const NormBackward& n, int64_t i, float* dx) {
  if (n.addend == nullptr) return;
  float more[V];
  load<V>(at<T>(n.addend, i), more);
  unrolled<V>([&](int k) { dx[k] = __fadd_rn(dx[k], more[k]); });
}

// Partial sums of dscale and dbias: [blocks, 2, width].
__device__ inline float* partial_of(const NormBackward& n, int64_t block) {
  return static_cast<float*>(n.scratch) + block * 2 * n.width;
}

// mean(g) and mean(g h), minus the gradients through the mean and inv outputs.
struct Means {
  float g, gh;
};
__device__ inline Means means_of(const NormBackward& n, int64_t row, float sum_g, float sum_gh,
                                 float inv) {
  const float count = static_cast<float>(n.width);
  Means m{n.mean == nullptr ? 0.0f : sum_g / count, sum_gh / count};
  if (n.dmean != nullptr) m.g -= n.dmean[row] / (count * inv);
  if (n.dinv != nullptr) m.gh += n.dinv[row] * inv / count;
  return m;
}

// 16-bit packs keep the scale in registers for all rows; others reload it from the cache.
template <typename T, int V>
constexpr bool kHoldsScale = V > 1 && sizeof(T) == 2;
// Blocks per multiprocessor: two if the sums and the stored dy, x and scale fit in 128 registers
// per thread.
template <typename T, int V, int E>
constexpr int kBackwardBlocks = (kHoldsScale<T, V> ? 7 * E / 2 : 4 * E) <= 84 ? 2 : 1;

// Backward pass of one row; adds to the column sums. dy and x stay in their stored dtype and are
// converted twice, which halves the registers for 16 bits.
template <typename T, int V, int E, int G>
__device__ inline void backward_row(const NormBackward& n, int64_t row, int lane, bool in_range,
                                    Pack<T, V>* scale, float* sums, float* spare) {
  const int64_t width = in_range ? n.width : 0;
  Pack<T, V> dy[E / V], x[E / V];
  load_held<V, E, G>(at<T>(n.dy, row * n.width), width, lane, dy);
  load_held<V, E, G>(at<T>(n.x, row * n.width), width, lane, x);
  const float mean = in_range && n.mean != nullptr ? n.mean[row] : 0.0f;
  const float inv = in_range ? n.inv[row] : 1.0f;
  const auto normalized = [&](int p, float* h) {
    unpack(x[p], h);
    unrolled<V>([&](int k) { h[k] = (h[k] - mean) * inv; });
  };
  const auto to_scaled = [&](int p, int64_t column, float* d) {
    if (n.scale == nullptr) return;
    float factor[V];
    if constexpr (kHoldsScale<T, V>) {
      unpack(scale[p], factor);
    } else {
      load<V>(at<T>(n.scale, column), factor);
    }
    unrolled<V>([&](int k) { d[k] *= factor[k]; });
  };
  float d[V], h[V];
  float sum_g = 0, sum_gh = 0;
  for_packs<V, E, G>(width, lane, [&](int first, int64_t column) {
    normalized(first / V, h);
    unpack(dy[first / V], d);
    unrolled<V>([&](int k) {
      sums[first + k] += d[k] * h[k];
      sums[E + first + k] += d[k];
    });
    to_scaled(first / V, column, d);
    unrolled<V>([&](int k) {
      sum_g += d[k];
      sum_gh += d[k] * h[k];
    });
  });
  sum_g = group_reduce<G>(sum_g, Add{}, spare);
  sum_gh = group_reduce<G>(sum_gh, Add{}, spare);
  if (!in_range) return;
  const Means m = means_of(n, row, sum_g, sum_gh, inv);
  unrolled<E / V>([&](int p) {
    keep_stored(dy[p]);
    keep_stored(x[p]);
    if constexpr (kHoldsScale<T, V>) keep_stored(scale[p]);
  });
  for_packs<V, E, G>(n.width, lane, [&](int first, int64_t column) {
    normalized(first / V, h);
    unpack(dy[first / V], d);
    to_scaled(first / V, column, d);
    unrolled<V>([&](int k) { d[k] = inv * (d[k] - m.g - h[k] * m.gh); });
    add_addend<V, T>(n, row * n.width + column, d);
    store<V>(at<T>(n.dx, row * n.width + column), d);
  });
}

// A block iterates over rows, G threads per row, and keeps column sums of dscale and dbias in
// registers. In the end warp 0 collects the other warps' sums through `joined`, one warp at a time,
// and writes the block's partials.
template <typename T, int V, int E, int G>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks<T, V, E>)
    backward_held(NormBackward n) {
  constexpr int kGroups = kThreads / G;
  __shared__ float spare[kThreads / kWarp];
  __shared__ float joined[2 * E * kWarp];  // one warp's sums, if a group is a warp
  const int lane = static_cast<int>(threadIdx.x) % G, group = static_cast<int>(threadIdx.x) / G;
  float sums[2 * E] = {};
  Pack<T, V> scale[E / V];
  if (kHoldsScale<T, V> && n.scale != nullptr)
    load_held<V, E, G>(at<T>(n.scale, 0), n.width, lane, scale);
  const int64_t step = int64_t{gridDim.x} * kGroups;
  for (int64_t first = int64_t{blockIdx.x} * kGroups; first < n.rows; first += step) {
    const int64_t row = first + group;
    backward_row<T, V, E, G>(n, row, lane, row < n.rows, scale, sums, spare);
  }
  if (n.scratch == nullptr) return;
  if constexpr (kGroups > 1) {  // warp 0 adds the others in order
    for (int g = 1; g < kGroups; ++g) {
      __syncthreads();
#pragma unroll
      for (int i = 0; group == g && i < 2 * E; ++i) joined[i * kWarp + lane] = sums[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; group == 0 && i < 2 * E; ++i) sums[i] += joined[i * kWarp + lane];
    }
    if (group != 0) return;
  }
  float* to = partial_of(n, blockIdx.x);
  for_packs<V, E, G>(n.width, lane, [&](int first, int64_t column) {
    unrolled<V>([&](int k) {
      to[column + k] = sums[first + k];
      to[n.width + column + k] = sums[E + first + k];
    });
  });
}

// Rows longer than 8192: a block per row, in two passes.
template <typename T>
OFSDP_CUDA_KERNEL backward_long(NormBackward n) {
  __shared__ float spare[kThreads / kWarp];
  const int64_t row = blockIdx.x, at_row = row * n.width;
  const float mean = n.mean == nullptr ? 0.0f : n.mean[row];
  const float inv = n.inv[row];
  auto g = [&](int64_t c) {
    const float d = to_float(*at<T>(n.dy, at_row + c));
    return n.scale == nullptr ? d : d * to_float(*at<T>(n.scale, c));
  };
  auto h = [&](int64_t c) { return (to_float(*at<T>(n.x, at_row + c)) - mean) * inv; };
  float sum_g = 0, sum_gh = 0;
  for (int64_t c = threadIdx.x; c < n.width; c += kThreads) {
    sum_g += g(c);
    sum_gh += g(c) * h(c);
  }
  sum_g = group_reduce<kThreads>(sum_g, Add{}, spare);
  sum_gh = group_reduce<kThreads>(sum_gh, Add{}, spare);
  const Means m = means_of(n, row, sum_g, sum_gh, inv);
  for (int64_t c = threadIdx.x; c < n.width; c += kThreads) {
    float dx[1] = {inv * (g(c) - m.g - h(c) * m.gh)};
    add_addend<1, T>(n, at_row + c, dx);
    store<1>(at<T>(n.dx, at_row + c), dx);
  }
}

// A thread sums one column over rows_a_block rows. Runs before backward_long, which may
// write dx over dy or x.
template <typename T>
OFSDP_CUDA_KERNEL column_sums(NormBackward n, int64_t rows_a_block) {
  OFSDP_CUDA_ITEM(column, n.width);
  const int64_t first = blockIdx.y * rows_a_block;
  const int64_t last = first + rows_a_block < n.rows ? first + rows_a_block : n.rows;
  float dscale = 0, dbias = 0;
  for (int64_t row = first; row < last; ++row) {
    const float d = to_float(*at<T>(n.dy, row * n.width + column));
    const float x = to_float(*at<T>(n.x, row * n.width + column));
    dscale += d * ((x - (n.mean == nullptr ? 0.0f : n.mean[row])) * n.inv[row]);
    dbias += d;
  }
  float* to = partial_of(n, blockIdx.y);
  to[column] = dscale;
  to[n.width + column] = dbias;
}

// Sums the partials of all blocks: 32 threads per column, each every 32nd block.
constexpr int kAdders = 32;
// Block x covers 32 columns, block y = 0 dscale and 1 dbias. threadIdx.x = column, threadIdx.y =
// partial modulo 32; `sums` combines them in order.
template <typename T>
__global__ void __launch_bounds__(kWarp* kAdders)
    add_partials(const float* partial, int64_t blocks, int64_t width, T* dscale, T* dbias) {
  __shared__ float sums[kAdders][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  const bool second = blockIdx.y == 1;
  T* to = second ? dbias : dscale;
  float sum = 0;
  if (column < width && to != nullptr) {
    const float* from = partial + (second ? width : 0) + column;
#pragma unroll 4
    for (int64_t b = threadIdx.y; b < blocks; b += kAdders) sum += from[b * 2 * width];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width || to == nullptr) return;
  for (int k = 1; k < kAdders; ++k) sum += sums[k][threadIdx.x];
  to[column] = Stored<T>::from(sum);
}

constexpr int64_t kPartials = 528;        // four blocks on each of 132 SMs
constexpr int64_t kMinRowsPerBlock = 64;  // rows per block of column_sums, at least

int64_t partial_count(int64_t rows) { return std::clamp<int64_t>(rows, 1, kPartials); }

template <typename T>
cudaError_t forward_as(const NormForward& n, cudaStream_t stream) {
  if (n.width == 0 || n.width > kMaxRegisterRow) {
    return launch_blocks(stream, n.rows, kThreads, forward_long<T>, n);
  }
  const bool packs =
      aligned16(n.width, sizeof(T), n.x, n.residual, n.residual_bias, n.scale, n.bias, n.y, n.sum);
  return held<T>(n.width, packs, [&]<int V, int E, int G>() {
    return launch_blocks(stream, blocks_for(n.rows, kThreads / G), kThreads,
                         forward_held<T, V, E, G>, n);
  });
}

template <typename T>
cudaError_t add_columns(const NormBackward& n, int64_t blocks, cudaStream_t stream) {
  if (n.dscale == nullptr && n.dbias == nullptr) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(blocks_for(n.width, kWarp)), 2);
  return launch(stream, grid, dim3(kWarp, kAdders), add_partials<T>,
                static_cast<const float*>(n.scratch), blocks, n.width, static_cast<T*>(n.dscale),
                static_cast<T*>(n.dbias));
}

template <typename T>
cudaError_t launch_backward_long(const NormBackward& n, cudaStream_t stream) {
  int64_t blocks = 0;
  if (n.scratch != nullptr) {
    const int64_t rows = std::max(kMinRowsPerBlock, blocks_for(n.rows, kPartials));
    blocks = blocks_for(n.rows, rows);
    const dim3 grid(static_cast<unsigned>(blocks_for(n.width, kThreads)),
                    static_cast<unsigned>(blocks));
    OFSDP_CUDA_TRY(launch(stream, grid, dim3(kThreads), column_sums<T>, n, rows));
  }
  OFSDP_CUDA_TRY(launch_blocks(stream, n.rows, kThreads, backward_long<T>, n));
  return add_columns<T>(n, blocks, stream);
}

template <typename T>
cudaError_t backward_as(const NormBackward& n, cudaStream_t stream) {
  if (n.width == 0) return cudaSuccess;
  if (n.rows == 0) return add_columns<T>(n, 0, stream);
  if (n.width > kMaxRegisterRow) return launch_backward_long<T>(n, stream);
  const bool packs = aligned16(n.width, sizeof(T), n.dy, n.x, n.scale, n.addend, n.dx);
  int64_t blocks = 0;
  OFSDP_CUDA_TRY(held<T>(n.width, packs, [&]<int V, int E, int G>() {
    blocks = partial_count(blocks_for(n.rows, kThreads / G));
    return launch_blocks(stream, blocks, kThreads, backward_held<T, V, E, G>, n);
  }));
  return add_columns<T>(n, blocks, stream);
}

}  // namespace

cudaError_t norm_forward(const NormForward& n, cudaStream_t stream) {
  return with_float(n.dtype, [&]<typename T>(T) { return forward_as<T>(n, stream); });
}

size_t norm_backward_scratch(int64_t rows, int64_t width) {
  return static_cast<size_t>(partial_count(rows) * 2 * width) * sizeof(float);
}

cudaError_t norm_backward(const NormBackward& n, cudaStream_t stream) {
  NormBackward call = n;
  if (n.dscale == nullptr && n.dbias == nullptr) call.scratch = nullptr;
  return with_float(n.dtype, [&]<typename T>(T) { return backward_as<T>(call, stream); });
}

}  // namespace ofsdp::kernels::cuda
