// Maximum of a row and sum of e^(x - maximum) in one walk: each thread rescales its sum when its
// maximum grows, then the threads' are joined (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018).
#pragma once

#include <cmath>

#include "kernels/cuda/device/quick.cuh"
#include "kernels/cuda/norm/rows.cuh"

namespace ofsdp::kernels::cuda {

struct OnlineSoftmax {
  float max = -INFINITY, sum = 0;

  // Adds scores that are stored as T.
  template <int N, typename T = float>
  __device__ void add(const float* v) {
    float most = max;
    unrolled<N>([&](int k) { most = Largest{}(v[k], most); });
    if (most == -INFINITY) return;  // nothing but -infinity yet
    float more = 0;
    unrolled<N>([&](int k) { more += exp_for<T>(v[k] - most); });
    sum = sum * exp_for<T>(max - most) + more;  // a first sum is 0, and e^-infinity
    max = most;
  }
};

// Over a group of G threads; all of them get it.
template <int G>
__device__ inline OnlineSoftmax joined(const OnlineSoftmax& mine, float* spare) {
  OnlineSoftmax all;
  all.max = group_fold<G>(mine.max, Largest{}, spare);
  all.sum = group_fold<G>(mine.max == -INFINITY ? 0.0f : mine.sum * expf(mine.max - all.max), Add{},
                          spare);
  return all;
}

template <int G, typename T>
__device__ inline OnlineSoftmax online_softmax(const T* row, int64_t n, int thread, float* spare) {
  OnlineSoftmax mine;
  walk_values(row, n, true, thread, G,
              [&]<int N>(int64_t, const float* v) { mine.template add<N, T>(v); });
  return joined<G>(mine, spare);
}

}  // namespace ofsdp::kernels::cuda
