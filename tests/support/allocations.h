// Counts the calls of operator new in a test program, on every thread. Linked into a program that
// names `allocations`: its operators replace those of the library.
#pragma once

#include <atomic>

namespace ofsdp::testing {
extern std::atomic<long> allocations;
}  // namespace ofsdp::testing
