#include "tests/support/allocations.h"

#include <cstdlib>
#include <new>

namespace ofsdp::testing {
std::atomic<long> allocations{0};
}  // namespace ofsdp::testing

// Not inlined: GCC 12 would take pairs of new and free for mistakes.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++ofsdp::testing::allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++ofsdp::testing::allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
