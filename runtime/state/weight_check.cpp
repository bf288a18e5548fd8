#include "runtime/state/weight_check.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/parallel.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kGrain = int64_t{1} << 16;
constexpr int64_t kInCache = 4096;  // elements, still in the first cache when they are counted

// Counts rather than stops, so that the loop is vector code.
OFSDP_MULTIARCH int64_t count_nan(const float* values, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += values[i] != values[i] ? 1 : 0;
  return count;
}

bool has_nan(const float* values, int64_t n) {
  std::atomic<bool> found = false;
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    if (count_nan(values + begin, end - begin) > 0) found = true;
  });
  return found;
}

}  // namespace

Status nan_weights(const RunState& state, int parameter, int rank, int64_t step) {
  return fault("{}: weights are NaN after step {}, rank {}: '{}' is the first of them",
               state.model_file(), step, rank, state.parameter_name(parameter));
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

Status check_weights(const RunPlan& plan, RunState& state, int rank, int64_t step) {
  for (const Unit& unit : plan.plan.units) {
    const Span mine = plan.plan.owned(unit, rank);
    const float* values = state.held(unit.id, -1);
    for (const UnitParam& p : unit.params) {
      const int64_t begin = std::max(p.offset, mine.begin);
      const int64_t end = std::min(p.offset + p.numel, mine.begin + mine.numel);
      if (begin >= end || !has_nan(values + (begin - mine.begin), end - begin)) continue;
      return nan_weights(state, p.parameter, rank, step);
    }
  }
  if (rank != 0) return {};
  for (const KeptPlan::Entry& entry : plan.kept.entries()) {
    if (entry.parameter < 0 || !is_carried(plan, entry.parameter)) continue;
    const std::span<float> values = state.kept(entry);
    if (!has_nan(values.data(), static_cast<int64_t>(values.size()))) continue;
    return nan_weights(state, entry.parameter, rank, step);
  }
  return {};
}

}  // namespace ofsdp::runtime
