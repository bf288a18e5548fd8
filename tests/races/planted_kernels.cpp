#include "tensor_core.cuh"
#include "tests/races/planted.h"

namespace ofsdp::races {
namespace {

using kernels::cuda::kAllLanes;
using kernels::cuda::launch;

constexpr unsigned kThreads = 128, kHalf = kThreads / 2, kNumbers = 4 * kThreads;

template <bool mistaken>
void missing_barrier(float* y) {
  __shared__ float s[kThreads];
  const unsigned t = threadIdx.x;
  s[t] = 1;
  if (!mistaken) __syncthreads();
  y[t] = s[(t + kHalf) % kThreads];
}

// A second round overwrites numbers from the first that other warps still read.
template <bool mistaken>
void early_overwrite(float* y) {
  __shared__ float s[kThreads];
  const unsigned t = threadIdx.x;
  for (int round = 0; round < 2; ++round) {
    s[t] = static_cast<float>(round);
    __syncthreads();
    y[t] += s[(t + kHalf) % kThreads];
    if (!mistaken) __syncthreads();
  }
}

template <bool mistaken>
void divergent_barrier(float* y) {
  if (mistaken && threadIdx.x < kHalf) {
    __syncthreads();
    y[threadIdx.x] = 1;
  } else {
    __syncthreads();
  }
}

template <bool mistaken>
void left_before_barrier(float* y) {
  if (mistaken && threadIdx.x >= kHalf) return;
  __syncthreads();
  y[threadIdx.x] = 1;
}

template <bool mistaken>
void wrong_mask(float* y) {
  if (threadIdx.x % 32 < 16)
    y[threadIdx.x] = __shfl_xor_sync(mistaken ? kAllLanes : 0xffff, 1.f, 1);
  __syncthreads();
}

template <bool mistaken>
void ended_lane(float* y) {
  if (mistaken && threadIdx.x % 32 == 7) return;
  y[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1.f, 1);
}

template <bool mistaken>
void foreign_lane(float* y) {
  if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_sync(0xffff, 1.f, mistaken ? 20 : 10);
}

template <bool mistaken>
void warp_synchronous(float* y) {
  __shared__ float s[kThreads];
  s[threadIdx.x] = 1;
  if (!mistaken) __syncwarp();
  y[threadIdx.x] = s[threadIdx.x ^ 1];
}

// The half that nobody writes holds the numbers of the block before.
template <bool mistaken>
void stale_shared(float* y) {
  __shared__ float s[kThreads];
  if (!mistaken || threadIdx.x < kHalf) s[threadIdx.x] = 1;
  __syncthreads();
  y[blockIdx.x * kThreads + threadIdx.x] = s[kThreads - 1 - threadIdx.x];
}

void fill_from(float* s, unsigned shift) { s[threadIdx.x + shift] = 1; }

template <bool mistaken>
void shared_overrun(float* y) {
  __shared__ float s[kThreads];
  fill_from(s, mistaken ? 1 : 0);
  __syncthreads();
  if (threadIdx.x > 0) y[threadIdx.x] = s[kThreads - threadIdx.x];
}

template <bool mistaken>
void global_overrun(float* y) {
  y[kNumbers - kThreads + threadIdx.x + (mistaken ? 1 : 0)] = 1;
}

// Each block reads the element that the next one writes.
template <bool mistaken>
void race_between_blocks(float* y) {
  if (threadIdx.x != 0) return;
  const unsigned next = (blockIdx.x + 1) % gridDim.x;
  y[blockIdx.x] = mistaken ? y[next] : y[kHalf + next];
}

template <bool mistaken>
void unordered_sum(float* y) {
  if (threadIdx.x != 0) return;
  if (mistaken) {
    *y += 1;
  } else {
    atomicAdd(y, 1.f);
  }
}

template <bool mistaken>
void last_writer(float* y) {
  if (threadIdx.x == 0) y[mistaken ? 0 : blockIdx.x] = static_cast<float>(blockIdx.x);
}

template <bool mistaken>
void unawaited_copy(float* y) {
  using kernels::cuda::Chunk;
  __shared__ Chunk tile[kThreads / 4];
  if (threadIdx.x < kThreads / 4) {
    kernels::cuda::copy_async(tile + threadIdx.x, y + 4 * threadIdx.x, true);
    if (!mistaken) kernels::cuda::wait_for_copies();
  }
  __syncthreads();
  y[threadIdx.x] = static_cast<float>(tile[threadIdx.x / 4].word[threadIdx.x % 4]);
}

// Two launches of a pair: kernel<true> and kernel<false>, with `blocks` blocks.
#define OFSDP_PLANTED(kernel, blocks, words)                                                 \
  Planted {                                                                                  \
#kernel, words, [](Buffers& m, bool mistaken) {                                            \
      return launch(nullptr, dim3(blocks), dim3(kThreads), mistaken ? kernel<true> : kernel<false>, \
                    m.floats(kNumbers));                                                       \
    } \
  }

}  // namespace

std::vector<Planted> planted_kernels() {
  return {OFSDP_PLANTED(missing_barrier, 1, "race without a __syncthreads"),
          OFSDP_PLANTED(early_overwrite, 1, "race without a __syncthreads"),
          OFSDP_PLANTED(divergent_barrier, 1, "waits at another barrier"),
          OFSDP_PLANTED(left_before_barrier, 1, "left before a barrier"),
          OFSDP_PLANTED(wrong_mask, 1, "waits for lanes 16, 17"),
          OFSDP_PLANTED(ended_lane, 1, "ended"),
          OFSDP_PLANTED(foreign_lane, 1, "not in the mask"),
          OFSDP_PLANTED(warp_synchronous, 1, "race inside a warp"),
          OFSDP_PLANTED(stale_shared, 2, "this block has not written"),
          OFSDP_PLANTED(shared_overrun, 1, "access beyond an array"),
          OFSDP_PLANTED(global_overrun, 1, "access beyond an array"),
          OFSDP_PLANTED(race_between_blocks, 3, "race between blocks"),
          OFSDP_PLANTED(unordered_sum, 3, "race between blocks"),
          OFSDP_PLANTED(last_writer, 3, "race between blocks"),
          OFSDP_PLANTED(unawaited_copy, 1, "before a cp.async into it is awaited")};
}

float last_of_blocks(Watched& watched, bool backwards) {
  float last = -1;
  watched.run(backwards, [&](Buffers& m) {
    float* const y = m.floats(1);
    const cudaError_t error = launch(nullptr, dim3(8), dim3(kThreads), last_writer<true>, y);
    last = *y;
    return error;
  });
  return last;
}

}  // namespace ofsdp::races
