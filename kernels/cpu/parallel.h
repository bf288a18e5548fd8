// Threads of a rank: one pool, libgomp's, which oneDNN uses as well, so that two pools never fight.
//
// parallel_for(n, grain, f) calls f(begin, end) over [0, n) cut at fixed points that depend on n,
// grain and the number of threads only; f must not depend on the cut (no partial sums across it).
// One thread runs it in place, without entering the pool.
//
// OFSDP_MULTIARCH on a function with hot loops compiles it for each instruction set of the kind of
// processor (multiarch.h in the folder of each, which CMake copies) and picks at load time; it has
// no stack canary ([Note: hardening] in cmake/targets.cmake).
//
// fastest_version<f<SeparateMultiplyAdd>, f<FusedMultiplyAdd>>() does the same for a loop that may
// fuse products and sums (vector_math.h): it returns a pointer to the version for this processor. f
// is a template of always inlined functions.
//
// Call from the thread that runs the schedule.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/multiarch.h"

namespace ofsdp::kernels {

int pool_threads();                // threads of the pool
void set_pool_threads(int count);  // once, before planning

inline constexpr int64_t kElementGrain = 16384;  // elements worth a thread, few operations each

template <auto separate, auto fused>
auto fastest_version() {
  return LoopVersions<separate, fused>::fastest();
}

// f(begin, end); grain: the fewest items worth a thread.
void parallel_for(int64_t n, int64_t grain, const auto& f) {
  const int64_t parts = std::min<int64_t>(pool_threads(), n / std::max<int64_t>(grain, 1));
  if (parts <= 1) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(parts))
  for (int64_t part = 0; part < parts; ++part) f(n * part / parts, n * (part + 1) / parts);
}

// f(i) for each item.
void parallel_each(int64_t n, int64_t grain, const auto& f) {
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace ofsdp::kernels
