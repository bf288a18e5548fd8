// The part of CUDA that kernels/cuda/*.cu use, on the CPU: the same sources compile with g++
// against this folder and run without a GPU, one block after the other, the threads of a block as
// fibers that meet in __syncthreads and shuffles.
//
// Proves indices, masks, reductions, barriers (a warp runs ahead of the others as far as it gets,
// the first one or, with set_backwards, the last, so what lacks a barrier gives other results) and,
// with AddressSanitizer, bounds. Cannot prove speed, memory ordering inside a warp, and that a
// barrier is not divergent where all threads come by another way. Dynamic shared memory is not
// there.
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

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned a, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorNoDevice = 100,
  cudaErrorNotSupported = 801
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
using cudaStream_t = void*;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  void* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace emulator {

void set_backwards(bool backwards);  // the order in which warps, and lanes of a warp, take turns
void run(const cudaLaunchConfig_t& config, const std::function<void()>& thread);
long& launches();  // kernels, fills and copies that streams were given so far, in this process
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
  emulator::run(*config, [&] { kernel(args...); });
  return cudaSuccess;
}

inline cudaError_t cudaMalloc(void** at, size_t bytes) {
  *at = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* at) {
  std::free(at);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t) {
  ++emulator::launches();
  return cudaMemcpy(to, from, bytes, kind);
}
inline cudaError_t cudaMemset(void* at, int value, size_t bytes) {
  if (bytes > 0) std::memset(at, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  ++emulator::launches();
  return cudaMemset(at, value, bytes);
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
