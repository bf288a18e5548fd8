#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/matmul/product_trial.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kMaxTrialBlocks = 132 * 16;  // loops stride

// The finalizers of MurmurHash3 (Appleby): each bit of x changes half of the result's.
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

template <typename T>
OFSDP_CUDA_KERNEL fill_kernel(T* data, int64_t count, uint32_t seed) {
  OFSDP_CUDA_LOOP(i, count) {
    const auto drawn = static_cast<int32_t>(mixed(static_cast<uint32_t>(i) ^ mixed(seed)));
    data[i] = Stored<T>::from(static_cast<float>(drawn) * 0x1p-31f);
  }
}

OFSDP_CUDA_KERNEL digest_kernel(const uint32_t* data, int64_t words, unsigned long long* digest) {
  unsigned long long sum = 0;
  OFSDP_CUDA_LOOP(i, words) { sum += mixed(static_cast<unsigned long long>(i) << 32 ^ data[i]); }
  atomicAdd(digest, sum);
}

int64_t blocks_of(int64_t items) {
  return std::min<int64_t>(blocks_for(items, kThreads), kMaxTrialBlocks);
}

}  // namespace

cudaError_t fill_random(DType dtype, void* data, int64_t count, uint32_t seed,
                        cudaStream_t stream) {
  return with_float(dtype, [&]<typename T>(T) {
    return launch_blocks(stream, blocks_of(count), kThreads, fill_kernel<T>, static_cast<T*>(data),
                         count, seed);
  });
}

cudaError_t add_digest(const void* data, int64_t words, unsigned long long* digest,
                       cudaStream_t stream) {
  return launch_blocks(stream, blocks_of(words), kThreads, digest_kernel,
                       static_cast<const uint32_t*>(data), words, digest);
}

}  // namespace ofsdp::kernels::cuda
