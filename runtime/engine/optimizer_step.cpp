#include "runtime/engine/optimizer_step.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::runtime {

OptimizerStep::OptimizerStep(const OptimizerDef& optimizer, const OptimizerSettings& settings,
                             const Plan& plan, const std::vector<UnitState>& units,
                             const std::vector<bool>& decays, UpdateProgram* program,
                             const std::vector<int>& rules)
    : optimizer_(optimizer),
      settings_(settings),
      param_dtype_(plan.param_dtype),
      units_(units),
      program_(program) {
  for (const Unit& unit : plan.units) {
    const UnitState& state = units[static_cast<size_t>(unit.id)];
    std::vector<Segment> list;
    // `end` counts elements of the unit.
    auto cover = [&](int64_t end, Segment what) {
      what.end = std::clamp<int64_t>(end - state.owned_begin, 0, state.owned_numel);
      const bool same = !list.empty() && list.back().weight_decay == what.weight_decay &&
                        list.back().rule == what.rule &&
                        (!needs_norms() || list.back().parameter == what.parameter);
      if (same) {
        list.back().end = std::max(list.back().end, what.end);
      } else if (what.end > (list.empty() ? 0 : list.back().end)) {
        list.push_back(what);
      }
    };
    for (const UnitParam& p : unit.params) {
      const bool decay = decays[static_cast<size_t>(p.parameter)];
      const int rule = program == nullptr ? -1 : rules[static_cast<size_t>(p.parameter)];
      cover(p.offset + p.numel, {0, decay ? settings.weight_decay : 0.0, p.parameter, rule});
    }
    cover(unit.padded_numel, list.empty() ? Segment{} : list.back());  // the padding stays 0
    segments_.push_back(std::move(list));
    state_.resize(std::max(state_.size(), state.optimizer.size()));
  }
  if (needs_norms()) direction_.resize(static_cast<size_t>(kReduceBlock));
}

void OptimizerStep::update(int unit, int64_t begin, std::span<const float> gradient,
                           const UpdateNumbers& numbers, std::span<float*> scratch) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  const int64_t end = begin + static_cast<int64_t>(gradient.size());
  int64_t at = begin;
  for (const Segment& segment : segments_[static_cast<size_t>(unit)]) {
    const int64_t stop = std::min(segment.end, end);
    if (stop <= at) continue;
    for (size_t i = 0; i < state.optimizer.size(); ++i) scratch[i] = state.optimizer[i] + at;
    if (program_ != nullptr) {
      run_program(state, segment, at, stop - at, gradient.data() + (at - begin), numbers);
      at = stop;
      continue;
    }
    optimizer_.update(settings_,
                      {state.owned + at, gradient.data() + (at - begin), scratch.data(), stop - at,
                       numbers.lr, segment.weight_decay, numbers.optimizer_step});
    at = stop;
  }
  if (!needs_norms()) round(state, begin, end - begin);
}

void OptimizerStep::round(int unit) const {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  round(state, 0, state.owned_numel);
}

// A block is still in the cache when it has been updated.
void OptimizerStep::round(const UnitState& state, int64_t begin, int64_t count) const {
  if (state.rounded == nullptr) return;
  std::byte* const to = state.rounded + static_cast<size_t>(begin) * dtype_size(param_dtype_);
  narrow(state.owned + begin, param_dtype_, to, count);
}

void OptimizerStep::run_program(const UnitState& state, const Segment& segment, int64_t at,
                                int64_t count, const float* gradient,
                                const UpdateNumbers& numbers) {
  program_->begin(numbers.optimizer_step);
  if (segment.rule < 0) return;
  program_->update(segment.rule, state.owned + at, gradient, state_.data(), count);
}

std::span<const float> OptimizerStep::direction(int unit, int64_t begin, int64_t count,
                                                double weight_decay, const UpdateNumbers& numbers) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  for (size_t i = 0; i < state.optimizer.size(); ++i) state_[i] = state.optimizer[i] + begin;
  optimizer_.direction(settings_,
                       {state.owned + begin, nullptr, state_.data(), count, numbers.lr,
                        weight_decay, numbers.optimizer_step},
                       direction_.data());
  return {direction_.data(), static_cast<size_t>(count)};
}

namespace {

OFSDP_MULTIARCH void subtract_scaled(float* __restrict values, const float* __restrict steps,
                                     float factor, size_t n) {
  for (size_t i = 0; i < n; ++i) values[i] -= factor * steps[i];
}

}  // namespace

void OptimizerStep::apply(int unit, const UpdateNumbers& numbers, std::span<const double> lengths) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  float* p = state.owned;
  visit(unit, {0, state.owned_numel}, numbers,
        [&](int parameter, std::span<const float>, std::span<const float> steps) {
          const double length = lengths[static_cast<size_t>(parameter)];
          subtract_scaled(p, steps.data(), static_cast<float>(length), steps.size());
          p += steps.size();
        });
  round(unit);
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

}  // namespace ofsdp::runtime
