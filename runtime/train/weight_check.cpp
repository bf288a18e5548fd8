#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "runtime/engine/nan_search.h"
#include "runtime/train/rank_state.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kGrain = int64_t{1} << 16;
constexpr int64_t kInCache = 4096;  // elements that stay in the first cache between copy and count

// Counts instead of stopping, so that the compiler can vectorize the loop.
OFSDP_MULTIARCH int64_t count_nan(const float* values, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += values[i] != values[i] ? 1 : 0;
  return count;
}

bool has_nan(std::span<const float> values) {
  std::atomic<bool> found = false;
  parallel_for(static_cast<int64_t>(values.size()), kGrain, [&](int64_t begin, int64_t end) {
    if (count_nan(values.data() + begin, end - begin) > 0) found = true;
  });
  return found;
}

}  // namespace

Status nan_weights(const RankState& state, int parameter, int64_t step) {
  return with_table(
      fault("{}: weights are NaN after step {}, rank {}: '{}' is the first of them",
            state.setup().graph.file, step, state.rank(), state.parameter(parameter).name),
      growth_text(state.watch()));
}

bool copy_has_nan(float* to, const float* from, int64_t n) {
  int64_t count = 0;
  for (int64_t at = 0; at < n; at += kInCache) {
    const int64_t chunk = std::min(kInCache, n - at);
    std::memcpy(to + at, from + at, static_cast<size_t>(chunk) * sizeof(float));
    count += count_nan(from + at, chunk);
  }
  return count > 0;
}

Status check_weights(const RankState& state, int64_t step) {
  for (const Unit& unit : state.plan().shards.units) {
    OFSDP_RETURN_IF_ERROR(state.held(unit, -1).for_each_part([&](const ShardPart& part) {
      return has_nan(part.values) ? nan_weights(state, part.param.parameter, step) : Status{};
    }));
  }
  if (state.rank() != 0) return {};
  for (const KeptValues::Entry* entry : carried_entries(state.plan())) {
    if (has_nan(state.statistic(*entry))) return nan_weights(state, entry->parameter, step);
  }
  return {};
}

}  // namespace ofsdp::runtime
