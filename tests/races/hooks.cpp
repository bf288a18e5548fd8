// In place of ThreadSanitizer's run time: passes the calls that g++ -fsanitize=thread makes at each
// access of a kernel to the detector. This file is compiled without the sanitizer.
#include "tests/races/hooks.h"

namespace ofsdp::races {
namespace {

Detector* watching = nullptr;

void note(const volatile void* at, size_t bytes, Access kind, const void* code) {
  if (watching != nullptr) watching->access(const_cast<const void*>(at), bytes, kind, code);
}

}  // namespace

void watch(Detector* detector) { watching = detector; }

}  // namespace ofsdp::races

using ofsdp::races::Access;
using ofsdp::races::note;

#define OFSDP_HOOK(name, bytes, kind) \
  void name(void* at) { note(at, bytes, Access::kind, __builtin_return_address(0)); }
// A volatile access counts as atomic: another thread may see it.
#define OFSDP_HOOKS(bytes)                                              \
  OFSDP_HOOK(__tsan_read##bytes, bytes, kRead)                          \
  OFSDP_HOOK(__tsan_write##bytes, bytes, kWrite)                        \
  OFSDP_HOOK(__tsan_unaligned_read##bytes, bytes, kRead)                \
  OFSDP_HOOK(__tsan_unaligned_write##bytes, bytes, kWrite)              \
  OFSDP_HOOK(__tsan_volatile_read##bytes, bytes, kAtomicRead)           \
  OFSDP_HOOK(__tsan_volatile_write##bytes, bytes, kAtomic)              \
  OFSDP_HOOK(__tsan_unaligned_volatile_read##bytes, bytes, kAtomicRead) \
  OFSDP_HOOK(__tsan_unaligned_volatile_write##bytes, bytes, kAtomic)

extern "C" {
OFSDP_HOOKS(1)
OFSDP_HOOKS(2)
OFSDP_HOOKS(4)
OFSDP_HOOKS(8)
OFSDP_HOOKS(16)
void __tsan_read_range(void* at, unsigned long bytes) {
  note(at, bytes, Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* at, unsigned long bytes) {
  note(at, bytes, Access::kWrite, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
