#include "runtime/optimizer_step.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/parallel.h"

namespace ofsdp {

std::vector<UnitState> unit_states(const Plan& plan, int rank, const RankMemoryPlan& offsets,
                                   const RankMemory& memory) {
  std::vector<UnitState> units;
  auto floats = [](std::byte* base, size_t offset) {
    return reinterpret_cast<float*>(base + offset);
  };
  for (const Unit& unit : plan.units) {
    const UnitOffsets& o = offsets.units[static_cast<size_t>(unit.id)];
    UnitState state;
    state.owned_numel = plan.owned_numel(unit);
    state.owned_begin = plan.shards_gradients() ? rank * state.owned_numel : 0;
    state.owned = floats(offsets.owned_in_shared ? memory.shared : memory.state.data(), o.owned);
    for (size_t offset : o.optimizer)
      state.optimizer.push_back(floats(memory.state.data(), offset));
    if (o.gradient >= 0)
      state.gradient = floats(memory.state.data(), static_cast<size_t>(o.gradient));
    state.slot = floats(memory.shared, o.slot);
    units.push_back(std::move(state));
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
    optimizer_.update(settings_, {state.owned + at, gradient.data() + (at - begin), state_.data(),
                                  stop - at, numbers.lr, segment.weight_decay, numbers.step});
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
