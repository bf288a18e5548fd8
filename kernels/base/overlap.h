// Overlaps a range with the parts of a flat array, such as a shard with a unit's parameters.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/status.h"

namespace ofsdp::base {

// Calls visit(part, first, at, count) in order for each part that overlaps [begin, begin + numel):
// `count` elements, from `first` in the part and from `at` in the range. A part has `offset` and
// `numel`, in array elements. Returns the first error from `visit`.
template <typename Parts, typename Visit>
Status for_each_part(const Parts& parts, int64_t begin, int64_t numel, const Visit& visit) {
  for (const auto& part : parts) {
    const int64_t first = std::max<int64_t>(part.offset, begin);
    const int64_t last = std::min<int64_t>(part.offset + part.numel, begin + numel);
    if (first >= last) continue;
    OFSDP_RETURN_IF_ERROR(visit(part, first - part.offset, first - begin, last - first));
  }
  return {};
}

}  // namespace ofsdp::base
