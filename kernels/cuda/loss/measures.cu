// Numbers for an evaluation's metrics. A warp per row finds the argmax and counts the classes
// before the label's. For an accuracy it stores two bits, which one block sums, so counts need no
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

// A warp per row, which lane 0 writes.
OFSDP_CUDA_KERNEL measure_rows(ClassMeasures m, const float* prediction, const int64_t* labels,
                               double* facts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= m.rows) return;  // all lanes of a warp have one row
  double* const out = facts + row * 5;
  const int64_t label = labels[row];
  if ((m.ignores && label == m.ignore_index) || label < 0 || label >= m.classes) {
    if (lane < 5) out[lane] = lane == 0 ? -1 : 0;
    return;
  }
  const float* const scores = prediction + row * m.classes;
  const float of_label = scores[label];
  Best best{scores[0], scores[0] == scores[0] ? 0 : -1};
  int64_t before = 0;
  for (int64_t c = lane; c < m.classes; c += kWarp) {
    const float v = scores[c];
    best = better(best, {v, v == v ? c : -1});
    if (v > of_label || (c < label && v == of_label)) ++before;
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, best.value, step),
                     __shfl_xor_sync(kAllLanes, best.place, step)};
    best = better(best, other);
  }
  before = warp_reduce(before, Add{});
  double sum = 0;
  const double most = best.value;
  if (m.likelihood == 1) {
    for (int64_t c = lane; c < m.classes; c += kWarp) sum += exp(double{scores[c]} - most);
    sum = warp_reduce(sum, Add{});
  }
  if (lane != 0) return;
  const bool ordered = best.place >= 0;
  out[0] = static_cast<double>(label);
  out[1] = static_cast<double>(best.place);
  out[2] = static_cast<double>(ordered ? before : m.classes);
  out[3] = 0;
  if (m.likelihood == 2) out[3] = -double{of_label};
  if (m.likelihood == 1) out[3] = log(sum) + (most - double{of_label});
  out[4] = m.classes < 2 ? 0 : double{scores[1]} - double{scores[0]};
}

// A thread per element.
OFSDP_CUDA_KERNEL pair_values(int64_t count, const float* prediction, const float* labels,
                              double* facts) {
  OFSDP_CUDA_ITEM(i, count);
  facts[2 * i] = prediction[i];
  facts[2 * i + 1] = labels[i];
}

}  // namespace

cudaError_t measure_classes(const ClassMeasures& m, const float* prediction, const int64_t* labels,
                            double* facts, cudaStream_t stream) {
  return launch_blocks(stream, blocks_for(m.rows, kThreads / kWarp), kThreads, measure_rows, m,
                       prediction, labels, facts);
}

cudaError_t measure_values(int64_t count, const float* prediction, const float* labels,
                           double* facts, cudaStream_t stream) {
  return over(count, stream, pair_values, count, prediction, labels, facts);
}

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
