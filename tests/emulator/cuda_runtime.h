// The part of CUDA that kernels/cuda/*.cu use, on the CPU: the same sources compile with g++
// against this folder and run without a GPU, one block after the other, the threads of a block as
// fibers that meet in __syncthreads and shuffles.
//
// Proves indices, masks, reductions, barriers (a warp runs ahead of the others as far as it gets,
// the first one or, with set_backwards, the last, so what lacks a barrier gives other results) and,
// with AddressSanitizer, bounds. Cannot prove speed, memory ordering inside a warp, and that a
// barrier is not divergent where all threads come by another way. Dynamic shared memory is not
// there. When a launch runs is the runtime's to say: at_once/runtime.cpp or tests/fake_cuda.
//
// Ownership: memory of cudaMalloc is the caller's. Threads: one launches. Errors: a block that
// cannot go on aborts.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "cuda_runtime_api.h"

#define __global__
#define __forceinline__ inline
#define __shared__ static
// As many bytes of no operation before the kernel, which most_threads counts; GCC takes no other
// constant expression than sizeof for the attribute. Kernels are in unnamed namespaces, so that no
// linker drops one of two of them, which it could not with these bytes.
#define __launch_bounds__(most, ...) \
  __attribute__((patchable_function_entry(sizeof(char[most]), sizeof(char[most]))))

namespace emulator {

// A launch, and its parameters while the call lasts.
struct Parameter {
  const void* value;
  size_t bytes;
  bool points;
};
struct Launch {
  const cudaLaunchConfig_t& config;
  const void* kernel;
  std::vector<Parameter> parameters;
};
// Runs the kernel, now (at_once) or when its stream gets there (tests/fake_cuda).
cudaError_t launch(const Launch& launch, std::function<void()> thread);
int most_threads(const void* kernel);  // its __launch_bounds__; 1024 where it has none
template <typename... P>
std::vector<Parameter> parameters(const P&... p) {
  return {{&p, sizeof(P), std::is_pointer_v<P>}...};
}

void set_backwards(bool backwards);  // the order in which warps, and lanes of a warp, take turns
void run(const cudaLaunchConfig_t& config, const std::function<void()>& thread);
void sync_threads();
// Every lane of the warp gives up to 48 bytes and gets those of all lanes, to be read before it
// meets them again.
struct alignas(16) Slot {
  unsigned char bytes[48];
};
const Slot* meet(const void* mine, size_t bytes);
int lane();
// 16 bytes to copy (or zeros, where `bytes` is 0): as late as they may, when the same thread
// finishes its copies, or with threads that run backwards at once.
void copy_later(void* to, const void* from, size_t bytes);
void finish_copies();

template <typename T>
T shuffled(T mine, int from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Slot));
  T theirs;
  std::memcpy(&theirs, meet(&mine, sizeof(T))[from].bytes, sizeof(T));
  return theirs;
}

}  // namespace emulator

#define OFSDP_EMULATOR_EXPECT(condition)                          \
  do {                                                            \
    if (!(condition)) {                                           \
      std::fprintf(stderr, "emulator: not so: %s\n", #condition); \
      std::abort();                                               \
    }                                                             \
  } while (false)

extern uint3 threadIdx, blockIdx;  // of the thread that runs
extern dim3 blockDim, gridDim;

inline void __threadfence_system() {}
inline void __syncthreads() { emulator::sync_threads(); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulator::shuffled(0, emulator::lane()); }
template <typename T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  return emulator::shuffled(v, emulator::lane() ^ mask);
}
template <typename T>
T __shfl_sync(unsigned, T v, int from) {
  return emulator::shuffled(v, from);
}

template <typename T>
T atomicMax(T* at, T v) {
  const T old = *at;
  if (v > old) *at = v;
  return old;
}
template <typename T>
T atomicAdd(T* at, T v) {
  const T old = *at;
  *at = old + v;
  return old;
}
template <typename T>
T atomicCAS(T* at, T expected, T v) {
  const T old = *at;
  if (old == expected) *at = v;
  return old;
}
inline unsigned __float_as_uint(float v) {
  unsigned bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... args) {
  const emulator::Launch launch{*config, reinterpret_cast<const void*>(kernel),
                                emulator::parameters(args...)};
  return emulator::launch(launch, [kernel, args...] { kernel(args...); });
}
