// A rank's threads and vector lanes. One pool, libgomp's, serves our loops and oneDNN, so that two
// pools never compete. Call from the thread that runs the schedule.
//
// parallel_for(n, grain, f) calls f(begin, end) over [0, n), cut at points that depend only on n,
// grain and the thread count; f must not depend on the cut (no partial sums across it). A single
// part runs in place, outside the pool.
//
// OFSDP_MULTIARCH compiles a function with hot loops for each instruction set of the target
// architecture and picks one at load time (multiarch.h in each processor's folder, which CMake
// copies). The function has no stack canary ([Note: hardening] in cmake/targets.cmake).
//
// fastest_version<f<SeparateMultiplyAdd>, f<FusedMultiplyAdd>>() does the same for a loop that may
// fuse products and sums (vector_math.h): it returns a pointer to this processor's version. f is a
// template of always inlined functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/multiarch.h"

namespace ofsdp::kernels {

int pool_threads();
void set_pool_threads(int count);  // once, before planning

inline constexpr int64_t kElementGrain = 16384;  // elements worth a thread, few operations each

template <auto separate, auto fused>
auto fastest_version() {
  return LoopVersions<separate, fused>::fastest();
}

// Calls f(begin, end); `grain`: the fewest items worth a thread.
void parallel_for(int64_t n, int64_t grain, const auto& f) {
  const int64_t parts = std::min<int64_t>(pool_threads(), n / std::max<int64_t>(grain, 1));
  if (parts <= 1) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(parts))
  for (int64_t part = 0; part < parts; ++part) f(n * part / parts, n * (part + 1) / parts);
}

// Calls f(i) for each item.
void parallel_each(int64_t n, int64_t grain, const auto& f) {
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// Row sums and maxima in 16 partial results, combined in a fixed order: so gcc can vectorise them
// without choosing the order of float additions. Call from an OFSDP_MULTIARCH function.

inline constexpr int64_t kSumLanes = 16;

// Returns the sum of f(i) for i in 0 .. n-1, in f's type.
[[gnu::always_inline]] inline auto lane_sum(int64_t n, const auto& f) {
  using T = decltype(f(n));
  T lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += f(i + lane);
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += f(i);
  T sum = 0;
  for (T lane : lanes) sum += lane;
  return sum;
}

// Reduces x[0 .. n-1] by `join`, from `start` on. REQUIRES: the order does not matter (maxima).
// Takes 64 partial results, because gcc does not vectorise comparisons in 16.
[[gnu::always_inline]] inline float lane_extreme(const float* x, int64_t n, float start,
                                                 const auto& join) {
  constexpr int64_t kWide = 64;
  float best = start;
  int64_t i = 0;
  if (n >= kWide) {
    float lanes[kWide];
    for (int64_t lane = 0; lane < kWide; ++lane) lanes[lane] = x[lane];
    for (i = kWide; i + kWide <= n; i += kWide) {
      for (int64_t lane = 0; lane < kWide; ++lane) lanes[lane] = join(lanes[lane], x[i + lane]);
    }
    for (int64_t lane = 0; lane < kWide / 2; ++lane) {
      lanes[lane] = join(lanes[lane], lanes[lane + kWide / 2]);
    }
    for (int64_t lane = 0; lane < kWide / 4; ++lane) {
      best = join(best, join(lanes[lane], lanes[lane + kWide / 4]));
    }
  }
  for (; i < n; ++i) best = join(best, x[i]);
  return best;
}

// Returns the largest x[i]; -infinity if n is 0. A NaN may be lost, but then the sum of e^(x - max)
// is NaN.
[[gnu::always_inline]] inline float lane_max(const float* x, int64_t n) {
  return lane_extreme(x, n, -std::numeric_limits<float>::infinity(),
                      [](float a, float b) { return b > a ? b : a; });
}

}  // namespace ofsdp::kernels
