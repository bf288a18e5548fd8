// Counts calls to operator new in a test program, on every thread. Linked into a program that names
// `allocations`: these operators replace the library's.
#pragma once

#include <atomic>

namespace ofsdp::testing {
extern std::atomic<long> allocations;
}  // namespace ofsdp::testing
