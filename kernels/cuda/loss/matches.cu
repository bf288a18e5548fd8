// One warp per row finds the argmax and stores two bits; one block sums them, so counts need no
// atomics.
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/loss/loss.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kMatchThreads = 1024;
constexpr uint8_t kKept = 1, kMatch = 2;

// First maximum so far; index -1 if there is none or NaN.
struct Best {
  float value;
  int64_t place;
};

__device__ inline Best better(Best a, Best b) {
  if (a.place < 0 || b.place < 0) return {a.value, a.place < 0 ? a.place : b.place};
  if (b.value > a.value || (b.value == a.value && b.place < a.place)) return b;
  return a;
}

OFSDP_CUDA_KERNEL match_rows(MatchCount m, const float* prediction, const int64_t* labels,
                             uint8_t* found) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t n = row < m.rows ? m.classes : 0;
  const float* scores = prediction + (row < m.rows ? row : 0) * m.pitch;
  // Lanes without elements repeat lane 0's.
  Best best{n > 0 ? scores[0] : 0.0f, 0};
  if (best.value != best.value || n == 0) best.place = -1;
  for (int64_t c = lane; c < n; c += kWarp) {
    const float v = scores[c];
    best = better(best, {v, v == v ? c : -1});
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, best.value, step),
                     __shfl_xor_sync(kAllLanes, best.place, step)};
    best = better(best, other);
  }
  if (lane != 0 || row >= m.rows) return;
  const int64_t label = labels[row];
  const bool kept = !m.ignores || label != m.ignore_index;
  found[row] =
      static_cast<uint8_t>((kept ? kKept : 0) | (kept && best.place == label ? kMatch : 0));
}

__global__ void __launch_bounds__(kMatchThreads)
    add_matches(int64_t rows, const uint8_t* found, int64_t* result) {
  __shared__ int64_t spare[kMatchThreads / kWarp];
  int64_t matches = 0, kept = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kMatchThreads) {
    kept += found[row] & kKept;
    matches += (found[row] & kMatch) / kMatch;
  }
  matches = group_reduce<kMatchThreads>(matches, Add{}, spare);
  kept = group_reduce<kMatchThreads>(kept, Add{}, spare);
  if (threadIdx.x != 0) return;
  result[0] = matches;
  result[1] = kept;
}

}  // namespace

size_t match_scratch(const MatchCount& m) { return static_cast<size_t>(m.rows); }

cudaError_t count_matches(const MatchCount& given, const float* prediction, const int64_t* labels,
                          int64_t* result, void* scratch, cudaStream_t stream) {
  MatchCount m = given;
  if (m.pitch == 0) m.pitch = m.classes;
  auto* found = static_cast<uint8_t*>(scratch);
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks_for(m.rows, kThreads / kWarp), kThreads, match_rows,
                               m, prediction, labels, found));
  return launch_blocks(stream, 1, kMatchThreads, add_matches, m.rows, found, result);
}

}  // namespace ofsdp::kernels::cuda
