// Exact sums of squares: each square is added as an integer to limbs of 32 bits in 64-bit words, so
// atomics in any order give the same sum. A block adds in shared memory first and touches the
// global limbs once.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {
namespace {

using Limb = unsigned long long;

constexpr int kLimbs = OFSDP_EXACT_LIMBS;
constexpr int64_t kMaxBlocksHere = 1024;  // the kernel is a grid-stride loop
constexpr int kMantissaBits = 52, kLowest = -256, kBias = 1023 + kMantissaBits;
constexpr Limb kLow = 0xffffffffu;

static_assert(sizeof(Limb) == sizeof(uint64_t));

__device__ void add_square(float value, Limb* limbs, Limb* not_finite) {
  const double square = static_cast<double>(value) * value;
  if (square == 0) return;
  if (!std::isfinite(square)) {
    atomicMax(not_finite, Limb{1});
    return;
  }
  Limb bits;
  memcpy(&bits, &square, sizeof(bits));
  Limb mantissa = (bits & ((Limb{1} << kMantissaBits) - 1)) | (Limb{1} << kMantissaBits);
  int shift = static_cast<int>(bits >> kMantissaBits) - kBias - kLowest;
  if (shift < 0) {
    mantissa = shift > -64 ? mantissa >> -shift : 0;
    shift = 0;
  }
  const int first = shift / 32, by = shift % 32;
  const Limb low = (mantissa & kLow) << by, high = (mantissa >> 32)
                                                   << by;  // by < 32: no bit is lost
  atomicAdd(limbs + first, low & kLow);
  atomicAdd(limbs + first + 1, ((low >> 32) + (high & kLow)));
  if ((high >> 32) != 0) atomicAdd(limbs + first + 2, high >> 32);
}

// A grid-stride loop. `limbs` holds the block's limbs, then a flag for values that are not finite.
__global__ void add_kernel(const float* values, int64_t count, ofsdp_exact_sum* sum) {
  __shared__ Limb limbs[kLimbs + 3];
  if (threadIdx.x < kLimbs + 3) limbs[threadIdx.x] = 0;
  __syncthreads();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    add_square(values[i], limbs, limbs + kLimbs + 2);
  }
  __syncthreads();
  auto* const to = reinterpret_cast<Limb*>(sum->limbs);
  if (threadIdx.x < kLimbs + 2 && limbs[threadIdx.x] != 0) {
    atomicAdd(to + threadIdx.x, limbs[threadIdx.x]);
  }
  if (threadIdx.x == kLimbs + 2 && limbs[threadIdx.x] != 0) {
    atomicMax(reinterpret_cast<Limb*>(&sum->not_finite), Limb{1});
  }
}

// Propagates carries: out[i] < 2^32, except that the last limb takes the rest.
__device__ void carry(const Limb* limbs, double* out) {
  Limb left = 0;
  for (int i = 0; i < kLimbs; ++i) {
    left += limbs[i];
    const bool last = i + 1 == kLimbs;
    out[i] = static_cast<double>(last ? left + (limbs[kLimbs] << 32) : left & kLow);
    left >>= 32;
  }
}

// One thread moves the sum to `out` and clears it.
__global__ void take_kernel(ofsdp_exact_sum* sum, double* out) {
  carry(reinterpret_cast<const Limb*>(sum->limbs), out);
  if (sum->not_finite != 0) out[0] = static_cast<double>(NAN);
  *sum = {};
}

// One thread: the limbs summed over ranks become a double.
__global__ void norm_kernel(const double* limbs, double* squared_norm) {
  if (std::isnan(limbs[0])) {
    *squared_norm = limbs[0];
    return;
  }
  Limb whole[kLimbs + 2] = {};
  double out[kLimbs];
  for (int i = 0; i < kLimbs; ++i) whole[i] = static_cast<Limb>(limbs[i]);
  carry(whole, out);
  double sum = 0;
  for (int i = kLimbs; i-- > 0;) sum += std::ldexp(out[i], 32 * i + kLowest);
  *squared_norm = sum;
}

}  // namespace

cudaError_t add_exact_squares(const float* values, int64_t count, ofsdp_exact_sum* sum,
                              cudaStream_t stream) {
  const int64_t blocks = std::min(blocks_for(count, kThreads), kMaxBlocksHere);
  return launch_blocks(stream, blocks, kThreads, add_kernel, values, count, sum);
}

cudaError_t take_exact_sum(ofsdp_exact_sum* sum, double* limbs, cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, take_kernel, sum, limbs);
}

cudaError_t exact_norm(const double* limbs, double* squared_norm, cudaStream_t stream) {
  return launch_blocks(stream, 1, 1, norm_kernel, limbs, squared_norm);
}

}  // namespace ofsdp::kernels::cuda
