// Sums and maxima of a contiguous row in 16 partial results that are combined in a fixed order:
// what lets gcc vectorise them without changing the order of float additions on its own. Threads:
// any. Call from an OFSDP_MULTIARCH function.
#pragma once

#include <cstdint>
#include <limits>

namespace ofsdp {

inline constexpr int64_t kLanes = 16;

// sum of f(i) for i in 0 .. n-1, in the type that f gives
template <typename F>
[[gnu::always_inline]] inline auto lane_sum(int64_t n, const F& f) {
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

// largest x[i]; -infinity when n is 0. A NaN may be lost, but then the sum of e^(x - max) is NaN.
[[gnu::always_inline]] inline float lane_max(const float* x, int64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] = x[i] > lanes[lane] ? x[i] : lanes[lane];
  float max = lanes[0];
  for (float lane : lanes) max = lane > max ? lane : max;
  return max;
}

}  // namespace ofsdp
