// How rows map to threads: a warp per row up to 1024 elements, a block of 256 up to 8192, each
// thread with at most 32 elements in registers; for longer rows a block loops. Rows may begin at
// any address: single elements up to the first 16-byte boundary, then packs, then the tail.
#pragma once

#include <cmath>

#include "kernels/cuda/device/quick.cuh"

namespace ofsdp::kernels::cuda {

inline constexpr int kRowElementsPerThread = 32;  // max row elements per thread
inline constexpr int64_t kMaxRegisterRow = int64_t{kThreads} * kRowElementsPerThread;

template <int V, typename F>
cudaError_t held_of(int64_t width, const F& f) {
  if (width <= kWarp * 8) return f.template operator()<V, 8, kWarp>();
  if (width <= kWarp * 24) return f.template operator()<V, 24, kWarp>();
  if (width <= kWarp * kRowElementsPerThread)
    return f.template operator()<V, kRowElementsPerThread, kWarp>();
  if (width <= kThreads * 8) return f.template operator()<V, 8, kThreads>();
  if (width <= kThreads * 16) return f.template operator()<V, 16, kThreads>();
  return f.template operator()<V, kRowElementsPerThread, kThreads>();
}

// Calls f<V, E, G>() for rows of 1 .. kMaxRegisterRow elements: G threads per row, E elements per
// thread in registers, packs of V.
template <typename T, typename F>
cudaError_t held(int64_t width, bool packs, const F& f) {
  return packs ? held_of<kPack<T>>(width, f) : held_of<1>(width, f);
}

// Calls f(first, column) for each pack that lane `lane` of G holds of a row: elements first ..
// first + V - 1 of the thread's E are columns column .. column + V - 1.
template <int V, int E, int G, typename F>
__device__ inline void for_packs(int64_t width, int lane, const F& f) {
#pragma unroll
  for (int p = 0; p < E / V; ++p) {
    const int column = (p * G + lane) * V;
    if (column < static_cast<int>(width)) f(p * V, int64_t{column});
  }
}

// Issues all of a lane's loads before the first use. A loop that loads and uses one pack at a time
// waits for memory each time.
template <int V, int E, int G, typename T>
__device__ inline void load_held(const T* row, int64_t width, int lane, Pack<T, V>* to) {
  const T* const mine = row + lane * V;
#pragma unroll
  for (int p = 0; p < E / V; ++p) {
    if ((p * G + lane) * V < static_cast<int>(width)) {
      to[p] = *reinterpret_cast<const Pack<T, V>*>(mine + p * G * V);
    }
  }
}

// A lane's packs of a row in registers: load_from(row), then get(first, from, v) unpacks the pack
// of elements first .. first + V - 1, at address `from`. With V = 1, get loads from `from` instead.
template <typename T, int V, int E>
struct Held {
  Pack<T, V> packs[E / V];

  template <int G>
  __device__ void load_from(const T* row, int64_t width, int lane) {
    if constexpr (V > 1) load_held<V, E, G>(row, width, lane, packs);
  }
  __device__ void get(int first, const T* from, Compute<T>* to) const {
    if constexpr (V > 1) {
      unpack(packs[first / V], to);
    } else {
      load<1>(from, to);
    }
  }
};

// Forces the compiler to convert the pack again at the next use. It would keep 16-bit elements as
// floats, in twice as many registers.
template <typename T, int V>
__device__ inline void keep_stored([[maybe_unused]] Pack<T, V>& pack) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(pack) >= sizeof(uint32_t) && sizeof(T) < sizeof(uint32_t)) {
    uint32_t words[sizeof(pack) / sizeof(uint32_t)];
    memcpy(words, &pack, sizeof(pack));
    unrolled<sizeof(pack) / sizeof(uint32_t)>([&](int k) { asm volatile("" : "+r"(words[k])); });
    memcpy(&pack, words, sizeof(pack));
  }
#endif
}

// A row of n elements as `head` single elements up to the first aligned address, `body` packs, and
// single elements. Without `packs` all are single.
struct RowParts {
  int64_t head, body;

  template <typename T>
  __device__ RowParts(const T* row, int64_t n, bool packs) {
    const auto ahead =
        static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
    head = !packs || ahead > n ? n : ahead;
    body = (n - head) / kPack<T>;
  }
};

// Calls f<N>(i) for elements i .. i + N - 1 of a row of n, with N = 1 or an aligned pack; this is
// thread `thread` of `threads`. Without `packs` N is 1.
template <typename T, typename F>
__device__ inline void for_row_packs(const T* row, int64_t n, bool packs, int thread, int threads,
                                     const F& f) {
  constexpr int V = kPack<T>;
  const RowParts parts(row, n, packs);
  const int64_t head = parts.head, body = parts.body;
  for (int64_t i = thread; i < head; i += threads) f.template operator()<1>(i);
  for (int64_t p = thread; p < body; p += threads) f.template operator()<V>(head + p * V);
  for (int64_t i = head + body * V + thread; i < n; i += threads) f.template operator()<1>(i);
}

// As for_row_packs, but also loads: calls f<N>(i, v) with elements i .. i + N - 1 in v. Each thread
// keeps kAhead packs in flight. With one, vocabulary-sized rows reached two thirds of an H200's
// bandwidth, since the compiler moves no load above a store that may alias the row.
template <int kAhead = 4, typename T, typename F>
__device__ inline void for_row_values(const T* row, int64_t n, bool packs, int thread, int threads,
                                      const F& f) {
  constexpr int V = kPack<T>;
  const RowParts parts(row, n, packs);
  const int64_t head = parts.head, body = parts.body;
  const auto single = [&](int64_t i) {
    Compute<T> v[1];
    load<1>(row + i, v);
    f.template operator()<1>(i, v);
  };
  for (int64_t i = thread; i < head; i += threads) single(i);
  int64_t p = thread;
  for (; p + (kAhead - 1) * threads < body; p += kAhead * threads) {
    Pack<T, V> loaded[kAhead];
    unrolled<kAhead>([&](int k) {
      loaded[k] = *reinterpret_cast<const Pack<T, V>*>(row + head + (p + k * threads) * V);
    });
    unrolled<kAhead>([&](int k) {
      Compute<T> v[V];
      unpack(loaded[k], v);
      f.template operator()<V>(head + (p + k * threads) * V, v);
    });
  }
  for (; p < body; p += threads) {
    Compute<T> v[V];
    load<V>(row + head + p * V, v);
    f.template operator()<V>(head + p * V, v);
  }
  for (int64_t i = head + body * V + thread; i < n; i += threads) single(i);
}

// Returns whether all rows have the alignment of `a`, so that their packs coincide.
template <typename... P>
bool same_alignment(const void* a, const P*... others) {
  return ((reinterpret_cast<uintptr_t>(a) % 16 == reinterpret_cast<uintptr_t>(others) % 16) && ...);
}

// Online softmax: the maximum of a row and the sum of e^(x - maximum) in one pass. A thread
// rescales the sum when the maximum grows; then the group combines the threads' results (Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018).
struct OnlineSoftmax {
  float max = -INFINITY, sum = 0;

  // Adds N scores that are stored as T.
  template <int N, typename T = float>
  __device__ void add(const float* v) {
    float next_max = max;
    unrolled<N>([&](int k) { next_max = Largest{}(v[k], next_max); });
    if (next_max == -INFINITY) return;  // only -infinity so far
    float more = 0;
    unrolled<N>([&](int k) { more += exp_for<T>(v[k] - next_max); });
    sum = sum * exp_for<T>(max - next_max) + more;  // the first time, 0 * e^-infinity
    max = next_max;
  }
};

// Combines the results of G threads; all of them get the result.
template <int G>
__device__ inline OnlineSoftmax joined(const OnlineSoftmax& mine, float* spare) {
  OnlineSoftmax all;
  all.max = group_reduce<G>(mine.max, Largest{}, spare);
  all.sum = group_reduce<G>(mine.max == -INFINITY ? 0.0f : mine.sum * expf(mine.max - all.max),
                            Add{}, spare);
  return all;
}

template <int G, typename T>
__device__ inline OnlineSoftmax online_softmax(const T* row, int64_t n, int thread, float* spare) {
  OnlineSoftmax mine;
  for_row_values(row, n, true, thread, G,
                 [&]<int N>(int64_t, const float* v) { mine.template add<N, T>(v); });
  return joined<G>(mine, spare);
}

}  // namespace ofsdp::kernels::cuda
