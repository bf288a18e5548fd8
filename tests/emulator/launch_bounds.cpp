// Tells a kernel's __launch_bounds__ (cuda_runtime.h).
#include <algorithm>
#include <cstdint>

#include "cuda_runtime.h"

namespace emulator {
namespace {

// Addresses of the bytes that __launch_bounds__ put before the kernels in this library.
extern "C" {
extern const uintptr_t __start___patchable_function_entries[]
    __attribute__((weak, visibility("hidden")));
extern const uintptr_t __stop___patchable_function_entries[]
    __attribute__((weak, visibility("hidden")));
}

}  // namespace

int most_threads(const void* kernel) {
  constexpr int kMax = 1024;
  const auto at = reinterpret_cast<uintptr_t>(kernel);
  uintptr_t nearest = 0;
  for (const uintptr_t* entry = __start___patchable_function_entries;
       entry != __stop___patchable_function_entries; ++entry) {
    if (*entry <= at) nearest = std::max(nearest, *entry);
  }
  if (nearest == 0 || at - nearest > kMax) return kMax;
  constexpr unsigned char kNop = 0x90;
  const auto* byte = reinterpret_cast<const unsigned char*>(nearest);
  const auto* end = static_cast<const unsigned char*>(kernel);
  return std::all_of(byte, end, [](unsigned char b) { return b == kNop; }) && byte != end
             ? static_cast<int>(end - byte)
             : kMax;
}

}  // namespace emulator
