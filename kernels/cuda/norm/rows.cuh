// How rows are dealt to threads: a warp a row up to 1024 elements, a block of 256 up to 8192, each thread with up to 32 of
// them in registers; longer rows are walked. And walks over rows that begin anywhere: single elements up to the first
// 16-byte boundary, packs, and the rest.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

inline constexpr int kHeld = 32;  // elements of a row that a thread holds at most
inline constexpr int64_t kLongestHeld = int64_t{kThreads} * kHeld;

// f(V, E, G as constants): the kernel for rows of `width` in packs or one by one held in registers, width 1 .. kLongestHeld.
template <int V>
struct Constants {
  template <int E, int G, typename F>
  static cudaError_t call(const F& f) {
    return f(std::integral_constant<int, V>(), std::integral_constant<int, E>(),
             std::integral_constant<int, G>());
  }
};

template <int V, typename F>
cudaError_t held_of(int64_t width, const F& f) {
  using C = Constants<V>;
  if (width <= kWarp * 8) return C::template call<8, kWarp>(f);
  if (width <= kWarp * 24) return C::template call<24, kWarp>(f);
  if (width <= kWarp * kHeld) return C::template call<kHeld, kWarp>(f);
  if (width <= kThreads * 8) return C::template call<8, kThreads>(f);
  if (width <= kThreads * 16) return C::template call<16, kThreads>(f);
  return C::template call<kHeld, kThreads>(f);
}

template <typename T, typename F>
cudaError_t held(int64_t width, bool packs, const F& f) {
  return packs ? held_of<kPack<T>>(width, f) : held_of<1>(width, f);
}

// f(count, i): elements i .. i + count - 1 of a row of n, count a constant (1, or a pack where `row` + i is aligned);
// thread of `threads`. With `packs` false all of them one by one.
template <typename T, typename F>
__device__ inline void walk_row(const T* row, int64_t n, bool packs, int thread, int threads,
                                const F& f) {
  constexpr int V = kPack<T>;
  const int64_t ahead =
      static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
  const int64_t head = !packs || ahead > n ? n : ahead;
  const int64_t body = (n - head) / V;
  for (int64_t i = thread; i < head; i += threads) f(std::integral_constant<int, 1>(), i);
  for (int64_t p = thread; p < body; p += threads)
    f(std::integral_constant<int, V>(), head + p * V);
  for (int64_t i = head + body * V + thread; i < n; i += threads) {
    f(std::integral_constant<int, 1>(), i);
  }
}

// Whether the packs of a walk over `a` are aligned in the others too.
template <typename... P>
bool same_alignment(const void* a, const P*... others) {
  return ((reinterpret_cast<uintptr_t>(a) % 16 == reinterpret_cast<uintptr_t>(others) % 16) && ...);
}

}  // namespace ofsdp::kernels::cuda
