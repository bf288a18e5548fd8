#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/matmul/product_kernels.h"
#include "kernels/cuda/pointwise/strided_index.h"

namespace ofsdp::kernels::cuda {
namespace {

// --- Padded copies ---

// A thread writes one unit of the target, 0 if the source has none there. A unit is 16 bytes if
// rows and columns of both sides are whole multiples, else one element.
template <typename Unit>
OFSDP_CUDA_KERNEL pad_kernel(const Unit* from, PitchedMatrix of_from, Unit* to,
                             PitchedMatrix of_to) {
  OFSDP_CUDA_ITEM(i, of_to.rows * of_to.columns);
  const int64_t r = i / of_to.columns, c = i - r * of_to.columns;
  const bool in_range = r < of_from.rows && c < of_from.columns;
  to[r * of_to.row + c] = in_range ? from[r * of_from.row + c] : Unit{};
}

// A thread clears one element of columns begin .. columns - 1.
template <typename Unit>
OFSDP_CUDA_KERNEL clear_kernel(Unit* data, PitchedMatrix of, int64_t begin) {
  const int64_t width = of.columns - begin;
  OFSDP_CUDA_ITEM(i, of.rows * width);
  const int64_t r = i / width;
  data[r * of.row + begin + (i - r * width)] = Unit{};
}

template <typename Unit>
PitchedMatrix in_units(PitchedMatrix m, size_t size) {
  const auto elements = static_cast<int64_t>(sizeof(Unit) / size);
  return {m.rows, m.columns / elements, m.row / elements};
}

template <typename Unit>
bool is_whole(const PitchedMatrix& m, size_t size, const void* data) {
  const auto elements = static_cast<int64_t>(sizeof(Unit) / size);
  return m.columns % elements == 0 && m.row % elements == 0 &&
         reinterpret_cast<uintptr_t>(data) % sizeof(Unit) == 0;
}

// --- Trial of algorithms ---

constexpr int64_t kMaxTrialBlocks = 132 * 16;  // the kernels are grid-stride loops

// The finalizers of MurmurHash3 (Appleby): flipping a bit of x flips half of the result's bits.
__device__ inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}
__device__ inline unsigned long long mixed(unsigned long long x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Element i depends on i and the seed only, not on the grid.
template <typename T>
OFSDP_CUDA_KERNEL random_fill_kernel(T* data, int64_t count, uint32_t seed) {
  OFSDP_CUDA_LOOP(i, count) {
    const auto drawn = static_cast<int32_t>(mixed(static_cast<uint32_t>(i) ^ mixed(seed)));
    data[i] = Stored<T>::from(static_cast<float>(drawn) * 0x1p-31f);
  }
}

// A thread sums the hashes of every stride-th word and adds the sum with one atomic.
OFSDP_CUDA_KERNEL digest_kernel(const uint32_t* data, int64_t words, unsigned long long* digest) {
  unsigned long long sum = 0;
  OFSDP_CUDA_LOOP(i, words) { sum += mixed(static_cast<unsigned long long>(i) << 32 ^ data[i]); }
  atomicAdd(digest, sum);
}

int64_t blocks_of(int64_t items) {
  return std::min<int64_t>(blocks_for(items, kThreads), kMaxTrialBlocks);
}

// --- Einsum ---

// Einsum by loops, a thread or a warp per result: no operand is reused, since equations that are
// batched matrix products go to cuBLASLt.

constexpr int64_t kMaxPerThread = 8;  // summed combinations; with more, a warp sums a result

// G threads per result, 1 or a warp, each summing every G-th combination.
template <typename T, int G>
OFSDP_CUDA_KERNEL einsum_kernel(EinsumParams e, T* y) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / G;
  const bool in_range = i < e.outer.numel;
  int64_t first[kMaxOperands], at[kMaxOperands];
  places<kMaxOperands>(e.outer, in_range ? i : 0, first);
  float sum = 0;
  for (int64_t j = in_range ? threadIdx.x % G : e.summed.numel; j < e.summed.numel; j += G) {
    places<kMaxOperands>(e.summed, j, at);
    float product = 1;
#pragma unroll
    for (int k = 1; k < kMaxOperands; ++k) {
      if (k > e.count) continue;
      product *= to_float(static_cast<const T*>(e.operands[k - 1])[first[k] + at[k]]);
    }
    sum += product;
  }
  if constexpr (G > 1) sum = warp_reduce(sum, Add{});
  if (in_range && threadIdx.x % G == 0) y[first[0]] = Stored<T>::from(sum);
}

}  // namespace

cudaError_t copy_padded(size_t size, const void* from, const PitchedMatrix& of_from, void* to,
                        const PitchedMatrix& of_to, cudaStream_t stream) {
  const auto run = [&]<typename Unit>(Unit) {
    return over(of_to.rows * of_to.columns / static_cast<int64_t>(sizeof(Unit) / size), stream,
                pad_kernel<Unit>, static_cast<const Unit*>(from), in_units<Unit>(of_from, size),
                static_cast<Unit*>(to), in_units<Unit>(of_to, size));
  };
  const bool wide = is_whole<uint4>(of_from, size, from) && is_whole<uint4>(of_to, size, to);
  if (wide) return run(uint4{});
  return size == 2 ? run(uint16_t{}) : run(uint32_t{});
}

cudaError_t clear_columns(size_t size, void* data, const PitchedMatrix& of, int64_t begin,
                          cudaStream_t stream) {
  const int64_t elements = of.rows * (of.columns - begin);
  return size == 2 ? over(elements, stream, clear_kernel<uint16_t>, static_cast<uint16_t*>(data),
                          of, begin)
                   : over(elements, stream, clear_kernel<uint32_t>, static_cast<uint32_t*>(data),
                          of, begin);
}

cudaError_t fill_random(DType dtype, void* data, int64_t count, uint32_t seed,
                        cudaStream_t stream) {
  return with_float(dtype, [&]<typename T>(T) {
    return launch_blocks(stream, blocks_of(count), kThreads, random_fill_kernel<T>,
                         static_cast<T*>(data), count, seed);
  });
}

cudaError_t add_digest(const void* data, int64_t words, unsigned long long* digest,
                       cudaStream_t stream) {
  return launch_blocks(stream, blocks_of(words), kThreads, digest_kernel,
                       static_cast<const uint32_t*>(data), words, digest);
}

cudaError_t einsum_loops(const EinsumParams& e, void* y, cudaStream_t stream) {
  if (e.outer.rank < 0 || e.summed.rank < 0) return cudaErrorNotSupported;
  return with_float(e.dtype, [&]<typename T>(T) {
    return e.summed.numel > kMaxPerThread
               ? launch_blocks(stream, blocks_for(e.outer.numel, kThreads / kWarp), kThreads,
                               einsum_kernel<T, kWarp>, e, y)
               : over(e.outer.numel, stream, einsum_kernel<T, 1>, e, y);
  });
}

}  // namespace ofsdp::kernels::cuda
