#include "runtime/engine/optimizer_step.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::runtime {

namespace {

double rate_of(const UpdateGroup& group, const UpdateNumbers& numbers) {
  return group.lr ? *group.lr * numbers.factor : numbers.lr;
}

}  // namespace

OptimizerStep::OptimizerStep(const UpdatePlan& updates, const Plan& plan,
                             const std::vector<UnitState>& units, UpdateProgram* program,
                             const std::vector<int>& rules)
    : updates_(updates), param_dtype_(plan.param_dtype), units_(units), program_(program) {
  const auto waits = [&](const UnitParam& p) {
    const int group = updates.parameters[static_cast<size_t>(p.parameter)].group;
    return updates.groups[static_cast<size_t>(group)].optimizer->direction != nullptr;
  };
  needs_norms_ = program == nullptr && std::ranges::any_of(plan.units, [&](const Unit& unit) {
                   return std::ranges::any_of(unit.params, waits);
                 });
  for (const Unit& unit : plan.units) {
    const UnitState& state = units[static_cast<size_t>(unit.id)];
    std::vector<Segment> list;
    // `end` counts elements of the unit.
    auto cover = [&](int64_t end, Segment what) {
      what.end = std::clamp<int64_t>(end - state.owned_begin, 0, state.owned_numel);
      const bool same = !list.empty() && list.back().weight_decay == what.weight_decay &&
                        list.back().rule == what.rule && list.back().group == what.group &&
                        (!needs_norms() || list.back().parameter == what.parameter);
      if (same) {
        list.back().end = std::max(list.back().end, what.end);
      } else if (what.end > (list.empty() ? 0 : list.back().end)) {
        list.push_back(what);
      }
    };
    for (const UnitParam& p : unit.params) {
      const ParameterUpdate& update = updates.parameters[static_cast<size_t>(p.parameter)];
      const int rule = program == nullptr ? -1 : rules[static_cast<size_t>(p.parameter)];
      cover(p.offset + p.numel, {0, update.weight_decay, p.parameter, rule, update.group});
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
    const UpdateGroup& group = group_of(segment);
    for (size_t i = 0; i < group.states.size(); ++i) {
      scratch[i] = state.optimizer[group.states[i]] + at;
    }
    const float* const from = gradient.data() + (at - begin);
    if (program_ != nullptr) {
      run_program(state, segment, at, stop - at, from, numbers);
    } else {
      group.optimizer->update(
          group.settings, {state.owned + at, from, scratch.data(), stop - at,
                           rate_of(group, numbers), segment.weight_decay, numbers.optimizer_step});
    }
    if (!waits(segment)) average(state, at, stop - at, numbers.optimizer_step);
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

bool OptimizerStep::of_one_thread() const {
  return program_ != nullptr || std::ranges::any_of(updates_.groups, [](const UpdateGroup& group) {
           return group.optimizer->name.starts_with("plugin:");
         });
}

double OptimizerStep::step_length(int parameter, ParameterNorms norms,
                                  const UpdateNumbers& numbers) const {
  const int at = updates_.parameters[static_cast<size_t>(parameter)].group;
  const UpdateGroup& group = updates_.groups[static_cast<size_t>(at)];
  if (group.optimizer->step_length == nullptr) return 0;
  norms.lr = rate_of(group, numbers);
  return group.optimizer->step_length(group.settings, norms);
}

std::span<const float> OptimizerStep::direction(int unit, int64_t begin, int64_t count,
                                                const Segment& segment,
                                                const UpdateNumbers& numbers) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  const UpdateGroup& group = group_of(segment);
  for (size_t i = 0; i < group.states.size(); ++i) {
    state_[i] = state.optimizer[group.states[i]] + begin;
  }
  group.optimizer->direction(
      group.settings,
      {state.owned + begin, nullptr, state_.data(), count, rate_of(group, numbers),
       segment.weight_decay, numbers.optimizer_step},
      direction_.data());
  return {direction_.data(), static_cast<size_t>(count)};
}

namespace {

OFSDP_MULTIARCH void subtract_scaled(float* __restrict values, const float* __restrict steps,
                                     float factor, size_t n) {
  for (size_t i = 0; i < n; ++i) values[i] -= factor * steps[i];
}

// torch.lerp(average, values, weight), which is exact at its far end too.
OFSDP_MULTIARCH void lerp(float* __restrict average, const float* __restrict values, float weight,
                          int64_t n) {
  if (weight < 0.5f) {
    for (int64_t i = 0; i < n; ++i) average[i] += weight * (values[i] - average[i]);
    return;
  }
  const float rest = 1 - weight;
  for (int64_t i = 0; i < n; ++i) average[i] = values[i] - (values[i] - average[i]) * rest;
}

}  // namespace

void OptimizerStep::average(const UnitState& state, int64_t begin, int64_t count,
                            int64_t optimizer_step) const {
  if (!updates_.average_decay) return;
  float* const to = state.optimizer[static_cast<size_t>(updates_.average_state())] + begin;
  if (optimizer_step == updates_.first_update) {
    std::copy_n(state.owned + begin, count, to);
  } else {
    lerp(to, state.owned + begin, static_cast<float>(1 - *updates_.average_decay), count);
  }
}

void OptimizerStep::swap_average() {
  for (size_t u = 0; u < units_.size(); ++u) {
    const UnitState& state = units_[u];
    float* const values = state.optimizer[static_cast<size_t>(updates_.average_state())];
    std::swap_ranges(state.owned, state.owned + state.owned_numel, values);
    round(static_cast<int>(u));
  }
}

void OptimizerStep::apply(int unit, const UpdateNumbers& numbers, std::span<const double> lengths) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  visit(unit, {0, state.owned_numel}, numbers,
        [&](int parameter, std::span<const float> p, std::span<const float> steps) {
          const double length = lengths[static_cast<size_t>(parameter)];
          const int64_t begin = p.data() - state.owned;
          subtract_scaled(state.owned + begin, steps.data(), static_cast<float>(length),
                          steps.size());
          average(state, begin, static_cast<int64_t>(steps.size()), numbers.optimizer_step);
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
