// The part of CUDA that kernels/cuda/*.cu use, on the CPU: the same sources compile with g++
// against this folder and run without a GPU. emulator.h tells the order and the errors found.
//
// Proves indices, masks, reductions and barriers: threads run in another order the second time, and
// shared memory begins as garbage, so a missing barrier gives other results. With AddressSanitizer
// it proves bounds, and with tests/races that no two threads use one place at once. It cannot prove
// speed, and has no dynamic shared memory. The runtime decides when a launch runs:
// at_once/runtime.cpp or tests/fake_cuda.
//
// Ownership: the caller owns memory of cudaMalloc. Threads: one launches. Errors: a block that
// cannot go on aborts.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda_runtime_api.h"
#include "emulator.h"
#include "launch_parameter.h"
#include "shared_memory.h"

#define __global__
#define __forceinline__ inline
// Puts `most` bytes without an operation before the kernel; most_threads counts them. GCC takes
// only sizeof as a constant expression in the attribute. Kernels are in unnamed namespaces: else a
// linker could drop one of two kernels, which these bytes forbid.
#define __launch_bounds__(most, ...) \
  __attribute__((patchable_function_entry(sizeof(char[most]), sizeof(char[most]))))

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace emulator {

struct Launch {
  const cudaLaunchConfig_t& config;
  const void* kernel;
  std::vector<LaunchParameter> parameters;
};
// Runs the kernel, now (at_once) or when the stream reaches it (tests/fake_cuda).
cudaError_t launch(const Launch& launch, std::function<void()> thread);
int most_threads(const void* kernel);  // from __launch_bounds__; 1024 without
template <typename... P>
std::vector<LaunchParameter> parameters(const P&... p) {
  return {{&p, sizeof(P), std::is_pointer_v<P>}...};
}

// Returns v of lane `from`, which must take part.
template <typename T>
T shuffled(T mine, int from, uint32_t mask, const Place& place) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Slot));
  from %= static_cast<int>(kWarp);
  if ((mask >> from & 1) == 0) fail("a lane is asked for that is not in the mask", place);
  T theirs;
  std::memcpy(&theirs, meet(&mine, sizeof(T), mask, place)[from].bytes, sizeof(T));
  return theirs;
}

}  // namespace emulator

#define OFSDP_EMULATOR_EXPECT(condition) \
  if (!(condition)) emulator::fail("not so: " #condition, emulator::Place::current())

extern uint3 threadIdx, blockIdx;  // of the running thread
extern dim3 blockDim, gridDim;

inline void __threadfence_system() {}
inline void __syncthreads(emulator::Place place = emulator::Place::current()) {
  emulator::sync_threads(place);
}
inline void __syncwarp(unsigned mask = emulator::kAllLanes,
                       emulator::Place place = emulator::Place::current()) {
  emulator::sync_warp(mask, place);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int lanes,
                  emulator::Place place = emulator::Place::current()) {
  return emulator::shuffled(v, emulator::lane() ^ lanes, mask, place);
}
template <typename T>
T __shfl_sync(unsigned mask, T v, int from, emulator::Place place = emulator::Place::current()) {
  return emulator::shuffled(v, from, mask, place);
}

template <typename T>
void __stwb(T* at, T v) {
  OFSDP_EMULATOR_EXPECT(reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0);
  std::memcpy(static_cast<void*>(at), &v, sizeof(T));
}

// The observer sees one atomic access; instrumented, it would be a read and a write.
#define OFSDP_EMULATOR_ATOMIC __attribute__((noinline, no_sanitize("thread")))
template <typename T>
OFSDP_EMULATOR_ATOMIC T atomicMax(T* at, T v) {
  emulator::note_atomic(at, sizeof(T), __builtin_return_address(0));
  const T old = *at;
  if (v > old) *at = v;
  return old;
}
template <typename T>
OFSDP_EMULATOR_ATOMIC T atomicAdd(T* at, T v) {
  emulator::note_atomic(at, sizeof(T), __builtin_return_address(0));
  const T old = *at;
  *at = old + v;
  return old;
}
template <typename T>
OFSDP_EMULATOR_ATOMIC T atomicCAS(T* at, T expected, T v) {
  emulator::note_atomic(at, sizeof(T), __builtin_return_address(0));
  const T old = *at;
  if (old == expected) *at = v;
  return old;
}
inline unsigned __float_as_uint(float v) {
  unsigned bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... args) {
  const emulator::Launch launch{*config, reinterpret_cast<const void*>(kernel),
                                emulator::parameters(args...)};
  return emulator::launch(launch, [kernel, args...] { kernel(args...); });
}
