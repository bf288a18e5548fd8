// Sums and maxima of a contiguous row in 16 partial results that are combined in a fixed order, so
// that gcc can vectorise them without choosing an order of float additions itself. Call from an
// OFSDP_MULTIARCH function.
#pragma once

#include <cstdint>
#include <limits>

namespace ofsdp::kernels {

inline constexpr int64_t kLanes = 16;

// sum of f(i) for i in 0 .. n-1, in the type that f gives
[[gnu::always_inline]] inline auto lane_sum(int64_t n, const auto& f) {
  using T = decltype(f(n));
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += f(i);
  T sum = 0;
  for (T lane : lanes) sum += lane;
  return sum;
}

// Reduces x[0 .. n-1] by `join`, beginning with `start`. REQUIRES: the order does not matter
// (maxima). Takes 64 partial results, because gcc makes no vectors of comparisons in 16.
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

// largest x[i]; -infinity if n is 0. A NaN may be lost, but then the sum of e^(x - max) is NaN.
[[gnu::always_inline]] inline float lane_max(const float* x, int64_t n) {
  return lane_extreme(x, n, -std::numeric_limits<float>::infinity(),
                      [](float a, float b) { return b > a ? b : a; });
}

}  // namespace ofsdp::kernels
