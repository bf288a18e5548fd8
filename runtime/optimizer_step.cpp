#include "runtime/optimizer_step.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/parallel.h"

namespace ofsdp {

namespace {

float* floats(std::byte* base, size_t offset) { return reinterpret_cast<float*>(base + offset); }

UnitState unit_state(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& o,
                     const MemoryBases& memory) {
  const Span owned = plan.owned(unit, rank);
  const auto place = static_cast<size_t>(rank % plan.shards(unit));
  std::byte* const state = memory.state;
  UnitState made;
  made.owned_numel = owned.numel;
  made.owned_begin = owned.begin;
  made.owned = floats(o.owned_in_shared ? memory.shared : state, o.owned + place * o.owned_stride);
  if (o.whole >= 0) {
    made.whole = (o.owned_stride > 0 ? memory.shared : state) + o.whole;
  } else if (!plan.gathers(unit)) {
    made.whole = reinterpret_cast<std::byte*>(made.owned);
  }
  for (size_t offset : o.optimizer) made.optimizer.push_back(floats(state, offset));
  made.frozen = memory.shared + o.frozen;
  made.slot = memory.shared + o.slot;
  if (o.gradient >= 0) {
    made.gradient =
        floats(o.gradient_in_shared ? memory.shared : state, static_cast<size_t>(o.gradient));
  } else if (!plan.shards_gradients(unit)) {
    made.gradient = reinterpret_cast<float*>(made.slot) + owned.begin;
  }
  return made;
}

}  // namespace

std::vector<UnitState> unit_states(const Plan& plan, int rank, const RankMemoryPlan& offsets,
                                   const MemoryBases& memory) {
  std::vector<UnitState> units;
  for (const Unit& unit : plan.units) {
    units.push_back(
        unit_state(plan, unit, rank, offsets.units[static_cast<size_t>(unit.id)], memory));
  }
  return units;
}

OptimizerStep::OptimizerStep(const OptimizerDef& optimizer, const OptimizerSettings& settings,
                             const Plan& plan, const std::vector<UnitState>& units,
                             const std::vector<bool>& decays)
    : optimizer_(optimizer), settings_(settings), units_(units) {
  for (const Unit& unit : plan.units) {
    const UnitState& state = units[static_cast<size_t>(unit.id)];
    std::vector<Segment> list;
    auto cover = [&](int64_t end, double decay) {  // `end` counts elements of the unit
      const int64_t clipped = std::clamp<int64_t>(end - state.owned_begin, 0, state.owned_numel);
      if (!list.empty() && list.back().weight_decay == decay) {
        list.back().end = std::max(list.back().end, clipped);
      } else if (clipped > (list.empty() ? 0 : list.back().end)) {
        list.push_back({clipped, decay});
      }
    };
    for (const UnitParam& p : unit.params) {
      const bool decay = decays[static_cast<size_t>(p.parameter)];
      cover(p.offset + p.numel, decay ? settings.weight_decay : 0.0);
    }
    cover(unit.padded_numel, list.empty() ? 0.0 : list.back().weight_decay);
    segments_.push_back(std::move(list));
    state_.resize(std::max(state_.size(), state.optimizer.size()));
  }
}

void OptimizerStep::update(int unit, int64_t begin, std::span<const float> gradient,
                           const UpdateNumbers& numbers) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  const int64_t end = begin + static_cast<int64_t>(gradient.size());
  int64_t at = begin;
  for (const Segment& segment : segments_[static_cast<size_t>(unit)]) {
    const int64_t stop = std::min(segment.end, end);
    if (stop <= at) continue;
    for (size_t i = 0; i < state.optimizer.size(); ++i) state_[i] = state.optimizer[i] + at;
    optimizer_.update(settings_,
                      {state.owned + at, gradient.data() + (at - begin), state_.data(), stop - at,
                       numbers.lr, segment.weight_decay, numbers.optimizer_step});
    at = stop;
  }
}

namespace {

constexpr size_t kLanes = 16;

OFSDP_MULTIARCH void add_squares(const float* values, size_t count, double* lanes) {
  for (size_t i = 0; i + kLanes <= count; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const double value = values[i + k];
      lanes[k] += value * value;
    }
  }
}

}  // namespace

double sum_of_squares(std::span<const float> values) {
  std::array<double, kLanes> lanes{};
  add_squares(values.data(), values.size(), lanes.data());
  for (size_t i = values.size() / kLanes * kLanes; i < values.size(); ++i) {
    lanes[i % kLanes] += static_cast<double>(values[i]) * values[i];
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace ofsdp
