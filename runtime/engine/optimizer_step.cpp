#include "runtime/engine/optimizer_step.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/factors.h"
#include "kernels/optimizers/updates.h"

namespace ofsdp::runtime {

namespace {

static_assert(kReduceBlock % kStateBlock == 0 && kStateBlock % kParamAlignment == 0);

double rate_of(const UpdateGroup& group, const UpdateNumbers& numbers) {
  return group.lr ? *group.lr * numbers.factor : numbers.lr;
}

}  // namespace

OptimizerStep::OptimizerStep(const UpdatePlan& updates, const Plan& plan,
                             const std::vector<UnitState>& units, UpdateProgram* program,
                             const std::vector<int>& rules, std::vector<OrthogonalUnit> orthogonal)
    : updates_(updates),
      param_dtype_(plan.param_dtype),
      units_(units),
      orthogonal_(std::move(orthogonal)),
      program_(program) {
  for (const Unit& unit : plan.units) {
    for (const UnitParam& p : unit.params) {
      const OptimizerDef& optimizer = updates.optimizer_of(p.parameter);
      needs_norms_ = needs_norms_ || (program == nullptr && optimizer.needs_norms());
      takes_steps_ = takes_steps_ || (program == nullptr && optimizer.direction != nullptr);
    }
  }
  for (const Unit& unit : plan.units) {
    cut(unit, rules, plan.alignment);
    list_factored(unit);
    state_.resize(std::max(state_.size(), units[static_cast<size_t>(unit.id)].optimizer.size()));
  }
  if (takes_steps_) direction_.resize(static_cast<size_t>(kReduceBlock));
  if (takes_steps_ && updates.encodes()) {
    decoded_.resize(state_.size() * static_cast<size_t>(kReduceBlock));
  }
}

// A parameter's gap goes with it.
void OptimizerStep::cut(const Unit& unit, const std::vector<int>& rules, int64_t alignment) {
  const UnitState& state = units_[static_cast<size_t>(unit.id)];
  std::vector<Segment>& list = segments_.emplace_back();
  // `end` counts elements of the unit.
  const auto cover = [&](int64_t end, Segment what) {
    what.end = std::clamp<int64_t>(end - state.owned_begin, 0, state.owned_numel);
    const bool own = takes_steps_ || updates_.encodes();
    const bool apart = own && !list.empty() && list.back().parameter != what.parameter;
    const bool same = !list.empty() && list.back().weight_decay == what.weight_decay &&
                      list.back().rule == what.rule && list.back().group == what.group && !apart;
    if (same) {
      list.back().end = std::max(list.back().end, what.end);
    } else if (what.end > (list.empty() ? 0 : list.back().end)) {
      place_states(unit, what);
      list.push_back(std::move(what));
    }
  };
  Segment last;
  for (const UnitParam& p : unit.params) {
    const ParameterUpdate& update = updates_.of(p.parameter);
    last = {.weight_decay = update.weight_decay,
            .parameter = p.parameter,
            .rule = program_ == nullptr ? -1 : rules[static_cast<size_t>(p.parameter)],
            .group = update.group,
            .origin = p.offset - state.owned_begin};
    const int64_t end = p.offset + p.numel;
    cover((end + alignment - 1) / alignment * alignment, last);
  }
  if (unit.params.empty()) return;
  // The padding stays 0. Where its states are not held it is left alone.
  if (list.empty()) last.rule = -1;
  const bool held = std::ranges::all_of(updates_.of(last.parameter).states,
                                        [&](size_t s) { return is_whole(updates_, unit, s); });
  if (!held) last = {.parameter = -1, .group = -1};
  cover(unit.padded_numel, last);
}

void OptimizerStep::list_factored(const Unit& unit) {
  const UnitState& state = units_[static_cast<size_t>(unit.id)];
  const Span owned{state.owned_begin, state.owned_numel};
  std::vector<Factored>& list = factored_.emplace_back();
  int64_t sums = 0;
  for (const UnitParam& p : unit.params) {
    const ParameterUpdate& update = updates_.of(p.parameter);
    if (!update.factored) continue;
    const MatrixShape& shape = update.shape;
    Factored f{.parameter = p.parameter,
               .shape = shape,
               .offset = p.offset,
               .rows = sums,
               .columns = sums + shape.matrices * shape.rows};
    sums = f.columns + shape.matrices * shape.columns;
    const auto held = [&](size_t i) {
      for (const StatePart& part : state_parts(updates_, unit, owned, update.states[i])) {
        if (part.param->parameter == p.parameter) return part;
      }
      return StatePart{};
    };
    f.held_rows = held(0);
    f.held_columns = held(1);
    list.push_back(f);
  }
}

void OptimizerStep::place_states(const Unit& unit, Segment& segment) const {
  if (segment.parameter < 0) return;
  const UnitState& state = units_[static_cast<size_t>(unit.id)];
  const Span owned{state.owned_begin, state.owned_numel};
  const ParameterUpdate& update = update_of(segment);
  for (const size_t s : update.states) {
    int64_t& shift = segment.shifts.emplace_back(0);
    if (is_whole(updates_, unit, s)) continue;
    for (const StatePart& part : state_parts(updates_, unit, owned, s)) {
      if (part.param->parameter != segment.parameter) continue;
      shift = part.at - part.first - (update.factored ? 0 : segment.origin);
    }
  }
}

MatrixSpan OptimizerStep::matrices(const Segment& segment, int64_t begin, int64_t count) const {
  const MatrixShape& shape = update_of(segment).shape;
  const int64_t first = begin - segment.origin, numel = shape.numel();
  return {shape, first, std::min(count, numel - first)};  // without the gap
}

void OptimizerStep::update(int unit, int64_t begin, std::span<const float> gradient,
                           const UpdateNumbers& numbers, std::span<float*> scratch) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  const int64_t end = begin + static_cast<int64_t>(gradient.size());
  int64_t at = begin;
  for (const Segment& segment : segments_[static_cast<size_t>(unit)]) {
    const int64_t stop = std::min(segment.end, end);
    if (stop <= at) continue;
    if (segment.parameter < 0) break;  // the end of the unit
    const UpdateGroup& group = group_of(segment);
    const float* const from = gradient.data() + (at - begin);
    if (program_ != nullptr) {
      run_program(state, segment, at, stop - at, from, numbers);
    } else if (!update_of(segment).factored) {
      advance(state, segment, at, {from, static_cast<size_t>(stop - at)}, numbers, scratch);
    }
    if (waits(segment) && group.optimizer->keeps_gradient()) {
      keep(state, segment, at, {from, static_cast<size_t>(stop - at)}, scratch, numbers);
    }
    if (!waits(segment)) average(state, at, stop - at, numbers.optimizer_step);
    at = stop;
  }
  if (!takes_steps_) round(state, begin, end - begin);
}

void OptimizerStep::advance(const UnitState& state, const Segment& segment, int64_t begin,
                            std::span<const float> gradient, const UpdateNumbers& numbers,
                            std::span<float*> scratch) const {
  const UpdateGroup& group = group_of(segment);
  OptimizerSpan<float> span{.param = state.owned + begin,
                            .grad = gradient.data(),
                            .state = scratch.data(),
                            .count = static_cast<int64_t>(gradient.size()),
                            .lr = rate_of(group, numbers),
                            .weight_decay = segment.weight_decay,
                            .step = numbers.optimizer_step};
  const size_t states = segment.shifts.size();
  if (!updates_.encodes()) {
    for (size_t i = 0; i < states; ++i) scratch[i] = state_of(state, segment, i) + begin;
    group.optimizer->update(group.settings, span);
    return;
  }
  std::array<StoredState, kMaxStates> stored;
  for (size_t i = 0; i < states; ++i) stored[i] = stored_of(state, segment, i, begin);
  StateRounding rounding =
      StateRounding::of(updates_.seed, segment.parameter, numbers.optimizer_step);
  rounding.first = begin - segment.origin;
  update_stored(*group.optimizer, group.settings, span, std::span(stored).first(states), rounding);
}

void OptimizerStep::read_states(const UnitState& state, const Segment& segment, int64_t begin,
                                int64_t count, std::span<float*> pointers) {
  for (size_t i = 0; i < segment.shifts.size(); ++i) {
    if (!updates_.encodes()) {
      pointers[i] = state_of(state, segment, i) + begin;
    } else {
      pointers[i] = decoded_.data() + i * static_cast<size_t>(kReduceBlock);
      read_state(stored_of(state, segment, i, begin), 0, count, pointers[i]);
    }
  }
}

// Keeps the gradient for the step; where the step is a matrix's, the direction that it begins with.
void OptimizerStep::keep(const UnitState& state, const Segment& segment, int64_t begin,
                         std::span<const float> gradient, std::span<float*> scratch,
                         const UpdateNumbers& numbers) {
  const UpdateGroup& group = group_of(segment);
  float* const to = state.gradient + begin;
  if (group.optimizer->traits.orthogonal) {
    read_states(state, segment, begin, static_cast<int64_t>(gradient.size()), scratch);
    group.optimizer->direction(group.settings,
                               {state.owned + begin, gradient.data(), scratch.data(),
                                static_cast<int64_t>(gradient.size()), rate_of(group, numbers),
                                segment.weight_decay, numbers.optimizer_step},
                               to);
  } else if (to != gradient.data()) {
    std::ranges::copy(gradient, to);
  }
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
  for (size_t i = 0; i < segment.shifts.size(); ++i) state_[i] = state_of(state, segment, i) + at;
  program_->update(segment.rule, state.owned + at, gradient, state_.data(), count);
}

bool OptimizerStep::of_one_thread() const {
  return program_ != nullptr || std::ranges::any_of(updates_.groups, [](const UpdateGroup& group) {
           return group.optimizer->name.starts_with("plugin:");
         });
}

double OptimizerStep::step_length(int parameter, ParameterNorms norms,
                                  const UpdateNumbers& numbers) const {
  const ParameterUpdate& update = updates_.of(parameter);
  const UpdateGroup& group = updates_.groups[static_cast<size_t>(update.group)];
  if (group.optimizer->step_length == nullptr) return 0;
  norms.lr = rate_of(group, numbers);
  norms.adjust = update.adjust;
  return group.optimizer->step_length(group.settings, norms);
}

std::span<const float> OptimizerStep::direction(int unit, int64_t begin, int64_t count,
                                                const Segment& segment,
                                                const UpdateNumbers& numbers) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  const UpdateGroup& group = group_of(segment);
  if (group.optimizer->traits.orthogonal) {
    return {state.gradient + begin, static_cast<size_t>(count)};
  }
  if (update_of(segment).factored) {
    factored_steps(state, segment, begin, count);
    return {direction_.data(), static_cast<size_t>(count)};
  }
  read_states(state, segment, begin, count, state_);
  const float* const gradient =
      group.optimizer->keeps_gradient() ? state.gradient + begin : nullptr;
  group.optimizer->direction(
      group.settings,
      {state.owned + begin, gradient, state_.data(), count, rate_of(group, numbers),
       segment.weight_decay, numbers.optimizer_step},
      direction_.data());
  return {direction_.data(), static_cast<size_t>(count)};
}

// Matrix by matrix; what is left is a gap.
void OptimizerStep::factored_steps(const UnitState& state, const Segment& segment, int64_t begin,
                                   int64_t count) {
  const float *const rows = state_of(state, segment, 0), *const columns =
                                                             state_of(state, segment, 1);
  const MatrixSpan all = matrices(segment, begin, count);
  const MatrixShape& shape = all.shape;
  int64_t done = 0;
  while (done < all.count) {
    const int64_t matrix = (all.first + done) / shape.size();
    const int64_t first = all.first + done - matrix * shape.size();
    const int64_t n = std::min(all.count - done, shape.size() - first);
    const float* const its_rows = rows + matrix * shape.rows;
    if (mean_.parameter != segment.parameter || mean_.matrix != matrix) {
      mean_ = {segment.parameter, matrix, mean_of_rows(its_rows, shape.rows)};
    }
    factored_direction({shape, first, n}, state.gradient + begin + done, its_rows,
                       columns + matrix * shape.columns, mean_.mean, direction_.data() + done);
    done += n;
  }
  std::fill(direction_.begin() + done, direction_.begin() + count, 0.0f);
}

int64_t factor_sums(const UpdatePlan& updates, const Unit& unit) {
  int64_t count = 0;
  for (const UnitParam& p : unit.params) {
    const ParameterUpdate& update = updates.of(p.parameter);
    const MatrixShape& shape = update.shape;
    if (update.factored) count += shape.matrices * (shape.rows + shape.columns);
  }
  return count;
}

namespace {

OFSDP_MULTIARCH void take_step(float* __restrict values, const float* __restrict steps, float keep,
                               float length, size_t n) {
  for (size_t i = 0; i < n; ++i) values[i] = values[i] * keep - length * steps[i];
}

OFSDP_MULTIARCH void follow(float* __restrict average, const float* __restrict values,
                            updates::Lerp lerp, int64_t n) {
  for (int64_t i = 0; i < n; ++i) average[i] = lerp(average[i], values[i]);
}

}  // namespace

void OptimizerStep::average(const UnitState& state, int64_t begin, int64_t count,
                            int64_t optimizer_step) const {
  if (!updates_.average_decay) return;
  float* const to = average_of(state) + begin;
  if (optimizer_step == updates_.first_update) {
    std::copy_n(state.owned + begin, count, to);
  } else {
    follow(to, state.owned + begin, updates::Lerp::of(1 - *updates_.average_decay), count);
  }
}

void OptimizerStep::swap_average() {
  for (size_t u = 0; u < units_.size(); ++u) {
    const UnitState& state = units_[u];
    float* const values = average_of(state);
    std::swap_ranges(state.owned, state.owned + state.owned_numel, values);
    round(static_cast<int>(u));
  }
}

void OptimizerStep::sum_squares(int unit, Span part, const float* gradient, float* sums) const {
  for (const Factored& f : factored_[static_cast<size_t>(unit)]) {
    const int64_t begin = std::max(part.begin, f.offset);
    const int64_t end = std::min(part.begin + part.numel, f.offset + f.shape.numel());
    if (begin >= end) continue;
    sums_of_squares({f.shape, begin - f.offset, end - begin}, gradient + (begin - part.begin),
                    sums + f.rows, sums + f.columns);
  }
}

void OptimizerStep::advance_factors(int unit, const float* sums,
                                    const UpdateNumbers& numbers) const {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  for (const Factored& f : factored_[static_cast<size_t>(unit)]) {
    const ParameterUpdate& update = updates_.of(f.parameter);
    const auto advance = [&](size_t i, const StatePart& part, int64_t first, int64_t length) {
      kernels::advance_factors(state.optimizer[update.states[i]].floats() + part.at,
                               sums + first + part.first, part.count, length,
                               numbers.optimizer_step);
    };
    advance(0, f.held_rows, f.rows, f.shape.columns);
    advance(1, f.held_columns, f.columns, f.shape.rows);
  }
}

Status OptimizerStep::orthogonalize(int unit, int index, std::span<float> values, std::byte* work,
                                    MatrixArithmetic& arithmetic) {
  float* const all = values.data();
  int64_t at = 0;  // what is before it is done
  const auto clear_until = [&](int64_t end) {
    return index != 0 && end > at ? arithmetic.clear(all + at, end - at) : ok_status();
  };
  for (OrthogonalMatrix& m : orthogonal_[static_cast<size_t>(unit)]) {
    OFSDP_RETURN_IF_ERROR(clear_until(m.offset));
    at = m.offset + m.numel();
    if (m.owner != index) {
      OFSDP_RETURN_IF_ERROR(arithmetic.clear(all + m.offset, m.numel()));
    } else {
      OFSDP_RETURN_IF_ERROR(runtime::orthogonalize(m, all + m.offset, work, arithmetic));
    }
  }
  return clear_until(static_cast<int64_t>(values.size()));
}

void OptimizerStep::apply(int unit, const UpdateNumbers& numbers, std::span<const double> lengths) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  const auto take = [&](const Segment& segment, std::span<const float> p,
                        std::span<const float> steps) {
    const UpdateGroup& group = group_of(segment);
    const bool decays = group.optimizer->keeps_gradient() && segment.weight_decay != 0;
    const auto keep =
        decays ? static_cast<float>(1 - rate_of(group, numbers) * segment.weight_decay) : 1.0f;
    const double length = needs_norms(segment) ? lengths[static_cast<size_t>(segment.parameter)]
                                               : step_length(segment.parameter, {}, numbers);
    const int64_t begin = p.data() - state.owned;
    take_step(state.owned + begin, steps.data(), keep, static_cast<float>(length), steps.size());
    average(state, begin, static_cast<int64_t>(steps.size()), numbers.optimizer_step);
  };
  visit_if(
      unit, {0, state.owned_numel}, numbers, [this](const Segment& s) { return waits(s); }, take);
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

StepLengths::StepLengths(const Plan& plan, const std::vector<UnitState>& units, int rank)
    : plan_(plan) {
  size_t parameters = 0;
  for (const Unit& unit : plan.units) {
    const Span part = plan.represented(unit, rank);
    parts_.push_back({part.begin - units[static_cast<size_t>(unit.id)].owned_begin, part.numel});
    for (const UnitParam& p : unit.params) {
      const auto at = static_cast<size_t>(p.parameter);
      parameters = std::max(parameters, at + 1);
      counts_.resize(parameters);
      counts_[at] = p.numel;
    }
  }
  squares_.resize(2 * parameters);
  lengths_.resize(parameters);
  if (plan.across_ranks) exact_.resize(2 * parameters);
  gathered_.resize(static_cast<size_t>(kMaxExchange * plan.world));
}

Status StepLengths::agree(OptimizerStep& optimizer, const UpdateNumbers& numbers,
                          Communicator& communicator) {
  std::ranges::fill(squares_, 0.0);
  for (ExactSquares& sum : exact_) sum.clear();
  for (const Unit& unit : plan_.units) {
    const auto add = [this](const OptimizerStep::Segment& segment, std::span<const float> p,
                            std::span<const float> d) {
      const size_t at = 2 * static_cast<size_t>(segment.parameter);
      if (plan_.across_ranks) {
        exact_[at].add(p);
        exact_[at + 1].add(d);
      } else {
        squares_[at] += sum_of_squares(p);
        squares_[at + 1] += sum_of_squares(d);
      }
    };
    optimizer.visit(unit.id, parts_[static_cast<size_t>(unit.id)], numbers, add);
  }
  const CollectiveSite site{"exchange of parameters' norms", -1, numbers.step};
  OFSDP_RETURN_IF_ERROR(plan_.across_ranks ? exchange_exact(communicator, site)
                                           : exchange(communicator, site));
  for (size_t p = 0; p < lengths_.size(); ++p) {
    if (counts_[p] == 0) continue;
    const ParameterNorms norms{.param = std::sqrt(squares_[2 * p]),
                               .direction = std::sqrt(squares_[2 * p + 1]),
                               .count = counts_[p],
                               .lr = numbers.lr,
                               .step = numbers.optimizer_step};
    lengths_[p] = optimizer.step_length(static_cast<int>(p), norms, numbers);
  }
  return {};
}

Status StepLengths::exchange(Communicator& communicator, const CollectiveSite& site) {
  for (size_t first = 0; first < squares_.size(); first += kMaxExchange) {
    const size_t count = std::min<size_t>(kMaxExchange, squares_.size() - first);
    const auto mine = std::span(squares_).subspan(first, count);
    const auto all = std::span(gathered_).first(count * static_cast<size_t>(communicator.size()));
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, site));
    std::ranges::fill(mine, 0.0);
    for (size_t i = 0; i < all.size(); ++i) mine[i % count] += all[i];
  }
  return {};
}

Status StepLengths::exchange_exact(Communicator& communicator, const CollectiveSite& site) {
  static_assert(ExactSquares::kLimbs <= kMaxExchange);
  const auto all =
      std::span(gathered_).first(ExactSquares::kLimbs * static_cast<size_t>(communicator.size()));
  for (size_t i = 0; i < exact_.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(communicator.exchange(exact_[i].limbs(), all, site));
    squares_[i] = ExactSquares::sum(all);
  }
  return {};
}

}  // namespace ofsdp::runtime
