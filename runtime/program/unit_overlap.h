// The part of a parameter that lies in elements [begin, end) of its unit. Pure. Threads: any.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fsdp/plan/plan.h"

namespace ofsdp::runtime {

struct Overlap {
  int64_t in_parameter;  // first element
  int64_t in_span;       // the same, counted from `begin`
  int64_t count;         // <= 0: none
};

inline Overlap overlap(const UnitParam& p, int64_t begin, int64_t end) {
  const int64_t first = std::max(p.offset, begin);
  const int64_t last = std::min(p.offset + p.numel, end);
  return {first - p.offset, first - begin, last - first};
}

}  // namespace ofsdp::runtime
