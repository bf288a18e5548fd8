// See cuda_runtime.h: CUB's stable sort, as a kernel with one thread.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

template <typename K, typename V>
void sort_pairs_kernel(const K* keys, K* sorted, const V* values, V* moved, int n) {
  std::vector<int> order(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
  for (int i = 0; i < n; ++i) {
    sorted[i] = keys[order[static_cast<size_t>(i)]];
    moved[i] = values[order[static_cast<size_t>(i)]];
  }
}

struct DeviceRadixSort {
  template <typename K, typename V>
  static cudaError_t SortPairs(void* scratch, size_t& bytes, const K* keys, K* sorted,
                               const V* values, V* moved, int n, int /*begin_bit*/, int /*end_bit*/,
                               cudaStream_t stream) {
    if (scratch == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    cudaLaunchConfig_t config;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, sort_pairs_kernel<K, V>, keys, sorted, values, moved, n);
  }
};

}  // namespace cub
