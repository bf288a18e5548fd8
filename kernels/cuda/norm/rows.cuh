// How rows are dealt to threads: a warp a row up to 1024 elements, a block of 256 up to 8192, each
// thread with up to 32 of them in registers; longer rows are walked. And walks over rows that begin
// anywhere: single elements up to the first 16-byte boundary, packs, and the rest.
#pragma once

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

inline constexpr int kHeld = 32;  // elements of a row that a thread holds at most
inline constexpr int64_t kLongestHeld = int64_t{kThreads} * kHeld;

template <int V, typename F>
cudaError_t held_of(int64_t width, const F& f) {
  if (width <= kWarp * 8) return f.template operator()<V, 8, kWarp>();
  if (width <= kWarp * 24) return f.template operator()<V, 24, kWarp>();
  if (width <= kWarp * kHeld) return f.template operator()<V, kHeld, kWarp>();
  if (width <= kThreads * 8) return f.template operator()<V, 8, kThreads>();
  if (width <= kThreads * 16) return f.template operator()<V, 16, kThreads>();
  return f.template operator()<V, kHeld, kThreads>();
}

// Calls f<V, E, G>() for rows of `width`, 1 .. kLongestHeld, that G threads hold in registers: E
// elements each, in packs of V.
template <typename T, typename F>
cudaError_t held(int64_t width, bool packs, const F& f) {
  return packs ? held_of<kPack<T>>(width, f) : held_of<1>(width, f);
}

// Calls f(first, column) for each pack of a row of `width` that lane `lane` of G holds: elements
// first .. first + V - 1 of its E, columns column .. column + V - 1.
template <int V, int E, int G, typename F>
__device__ inline void for_packs(int64_t width, int lane, const F& f) {
#pragma unroll
  for (int p = 0; p < E / V; ++p) {
    const int column = (p * G + lane) * V;
    if (column < static_cast<int>(width)) f(p * V, int64_t{column});
  }
}

// Loads the packs of a row that a lane holds, all of them before the first is used: a loop that
// loads and uses them waits for memory once a pack.
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

// A row's packs on their way: load_from(row), then get(first, from, v) puts the pack of elements
// first .. first + V - 1 that lies at `from`. Single elements are loaded when they are asked for.
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

// Makes the compiler convert the pack's elements again where they are used next: it would keep the
// floats of 16-bit elements, in twice as many registers.
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

// A row of n elements as it is walked: `head` single ones up to the first aligned address, `body`
// packs, and the rest. With `packs` false all of them are single ones.
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

// Calls f<N>(i) for elements i .. i + N - 1 of a row of n, where N is 1, or a pack where `row` + i
// is aligned; thread of `threads`. With `packs` false all of them come one by one.
template <typename T, typename F>
__device__ inline void walk_row(const T* row, int64_t n, bool packs, int thread, int threads,
                                const F& f) {
  constexpr int V = kPack<T>;
  const RowParts parts(row, n, packs);
  const int64_t head = parts.head, body = parts.body;
  for (int64_t i = thread; i < head; i += threads) f.template operator()<1>(i);
  for (int64_t p = thread; p < body; p += threads) f.template operator()<V>(head + p * V);
  for (int64_t i = head + body * V + thread; i < n; i += threads) f.template operator()<1>(i);
}

// Walks as walk_row does, with the values: f<N>(i, v) for elements i .. i + N - 1, which are
// v[0 .. N - 1]. kAhead packs of a thread are on their way at once: with one, rows of a vocabulary
// came at two thirds of an H200's bandwidth, and the compiler moves no load before a store that may
// be to the row.
template <int kAhead = 4, typename T, typename F>
__device__ inline void walk_values(const T* row, int64_t n, bool packs, int thread, int threads,
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

// Whether the packs of a walk over `a` are aligned in the others too.
template <typename... P>
bool same_alignment(const void* a, const P*... others) {
  return ((reinterpret_cast<uintptr_t>(a) % 16 == reinterpret_cast<uintptr_t>(others) % 16) && ...);
}

}  // namespace ofsdp::kernels::cuda
