#include "runtime/engine/update_table.h"

#include "kernels/core/memory.h"
#include "kernels/core/optimizer.h"

namespace ofsdp::runtime {

namespace {

int64_t aligned(const UpdatePlan& updates, int64_t numel) {
  const int64_t to = updates.alignment();
  return (numel + to - 1) / to * to;
}

enum class Form { kNone, kElements, kRows, kColumns };

Form form_of(const UpdatePlan& updates, int parameter, size_t state) {
  if (updates.average_decay && static_cast<int>(state) == updates.average_state()) {
    return Form::kElements;
  }
  const ParameterUpdate& update = updates.of(parameter);
  const auto found = std::ranges::find(update.states, state);
  if (found == update.states.end()) return Form::kNone;
  if (!update.factored) return Form::kElements;
  return found == update.states.begin() ? Form::kRows : Form::kColumns;
}

// Returns the part of `span` in the parameter, in elements of the parameter.
std::pair<int64_t, int64_t> overlap(const UnitParam& p, const Span& span) {
  const int64_t begin = std::clamp<int64_t>(span.begin - p.offset, 0, p.numel);
  return {begin, std::clamp<int64_t>(span.begin + span.numel - p.offset, begin, p.numel)};
}

int64_t factors_of_matrix(const MatrixShape& shape, Form form) {
  return form == Form::kRows ? shape.rows : shape.columns;
}

}  // namespace

Shape state_shape(const ParameterUpdate& update, size_t state, const Shape& parameter) {
  const bool factor =
      update.factored && std::ranges::find(update.states, state) != update.states.end();
  if (!factor) return parameter;
  std::vector<int64_t> axes = parameter.axes();
  axes[axes.size() - (state == update.states[0] ? 1 : 2)] = 1;
  return Shape(std::move(axes));
}

bool is_whole(const UpdatePlan& updates, const Unit& unit, size_t state) {
  return std::ranges::all_of(unit.params, [&](const UnitParam& p) {
    return form_of(updates, p.parameter, state) == Form::kElements;
  });
}

std::vector<StatePart> state_parts(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   size_t state) {
  const bool whole = is_whole(updates, unit, state);
  std::vector<StatePart> parts;
  int64_t at = 0;
  for (const UnitParam& p : unit.params) {
    const Form form = form_of(updates, p.parameter, state);
    const auto [begin, end] = overlap(p, owned);
    if (form == Form::kNone || begin == end) continue;
    StatePart part{&p, begin, end - begin, at};
    if (whole) {
      part.at = p.offset + begin - owned.begin;
    } else if (form != Form::kElements) {
      const MatrixShape& shape = updates.of(p.parameter).shape;
      const MatrixSpan span{shape, begin, end - begin};
      const int64_t each = factors_of_matrix(shape, form);
      part.first = span.first_matrix() * each;
      part.count = span.last_matrix() * each - part.first;
    }
    at += aligned(updates, part.count);
    parts.push_back(part);
  }
  return parts;
}

// The rank with the first element counts a matrix' factors.
std::vector<StatePart> state_share(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   const Span& unique, size_t state) {
  std::vector<StatePart> parts = state_parts(updates, unit, owned, state);
  for (StatePart& part : parts) {
    const int parameter = part.param->parameter;
    const Form form = form_of(updates, parameter, state);
    auto [begin, end] = overlap(*part.param, unique);
    if (form != Form::kElements) {
      const MatrixShape& shape = updates.of(parameter).shape;
      const int64_t each = factors_of_matrix(shape, form), size = shape.size();
      begin = (begin + size - 1) / size * each;
      end = (end + size - 1) / size * each;
    }
    part.at += begin - part.first;
    part.first = begin;
    part.count = end - begin;
  }
  std::erase_if(parts, [](const StatePart& part) { return part.count == 0; });
  return parts;
}

std::vector<std::vector<int64_t>> state_numels(const UpdatePlan& updates, const Plan& plan,
                                               int rank) {
  std::vector<std::vector<int64_t>> units;
  for (const Unit& unit : plan.units) {
    std::vector<int64_t>& numels = units.emplace_back(updates.states.size(), 0);
    for (size_t state = 0; state < numels.size(); ++state) {
      if (is_whole(updates, unit, state)) {
        numels[state] = plan.owned(unit, rank).numel;
        continue;
      }
      const bool equal = unit.plan.bounds.empty();
      for (int place = 0; place < unit.plan.shards; ++place) {
        if (!equal && place != rank % unit.plan.shards) continue;
        const auto parts = state_parts(updates, unit, plan.owned(unit, place), state);
        if (parts.empty()) continue;
        numels[state] =
            std::max(numels[state], parts.back().at + aligned(updates, parts.back().count));
      }
    }
  }
  return units;
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

UpdateTable::UpdateTable(const UpdatePlan& updates, const Plan& plan, int rank,
                         const std::vector<int>& rules)
    : updates_(updates),
      plan_(plan),
      rank_(rank),
      rules_(rules),
      factored_(updates.parameters.size()),
      numels_(runtime::state_numels(updates, plan, rank)) {
  for (const Unit& unit : plan.units) {
    int64_t sums = 0;
    for (const UnitParam& p : unit.params) {
      const OptimizerDef& optimizer = updates.optimizer_of(p.parameter);
      needs_norms_ = needs_norms_ || (!has_rules() && optimizer.needs_norms());
      takes_steps_ = takes_steps_ || (!has_rules() && optimizer.direction != nullptr);
      parameters_ = std::max<int64_t>(parameters_, p.parameter + 1);
      const ParameterUpdate& update = updates.of(p.parameter);
      if (!update.factored) continue;
      factored_[static_cast<size_t>(p.parameter)] = {sums, matrices_};
      sums += update.shape.matrices * (update.shape.rows + update.shape.columns);
      matrices_ += update.shape.matrices;
    }
  }
  for (const Unit& unit : plan.units) cut(unit);
}

void UpdateTable::cut(const Unit& unit) {
  const Span owned = plan_.owned(unit, rank_);
  std::vector<UpdateRow>& list = rows_.emplace_back();
  int64_t covered = 0;
  // Covers the unit's elements up to `end`.
  const auto cover = [&](int64_t end, UpdateRow row) {
    row.end = std::clamp<int64_t>(end - owned.begin, 0, owned.numel);
    const bool own = takes_steps_ || updates_.encodes();
    const bool apart = own && !list.empty() && list.back().parameter != row.parameter;
    const bool same = !list.empty() && list.back().weight_decay == row.weight_decay &&
                      list.back().rule == row.rule && list.back().group == row.group && !apart;
    if (same) {
      list.back().end = std::max(list.back().end, row.end);
    } else if (row.end > covered) {
      row.first += covered;
      row.begin = covered;
      place_states(unit, owned, row);
      list.push_back(row);
    }
    covered = list.empty() ? 0 : list.back().end;
  };
  UpdateRow last;
  for (const UnitParam& p : unit.params) {
    last = row_of(p, owned);
    const int64_t end = p.offset + p.numel;
    cover((end + plan_.alignment - 1) / plan_.alignment * plan_.alignment, last);
  }
  if (unit.params.empty()) return;
  // Padding stays 0. It has a row only if the rank has states for it.
  if (list.empty()) last.rule = -1;
  const auto& states = updates_.of(static_cast<int>(last.parameter)).states;
  const bool held =
      std::ranges::all_of(states, [&](size_t s) { return is_whole(updates_, unit, s); });
  if (held) cover(unit.padded_numel, last);
}

UpdateRow UpdateTable::row_of(const UnitParam& p, const Span& owned) const {
  const ParameterUpdate& update = updates_.of(p.parameter);
  UpdateRow row;
  row.parameter = p.parameter;
  row.weight_decay = update.weight_decay;
  row.first = owned.begin - p.offset;  // of element 0 of the shard
  row.numel = p.numel;
  row.group = update.group;
  row.adjust = update.adjust;
  if (has_rules()) row.rule = rules_[static_cast<size_t>(p.parameter)];
  if (update.factored) place_factors(row, update);
  return row;
}

void UpdateTable::place_factors(UpdateRow& row, const ParameterUpdate& update) const {
  const Factored& factored = factored_[static_cast<size_t>(row.parameter)];
  row.rows = update.shape.rows;
  row.columns = update.shape.columns;
  row.sums = factored.sums;
  row.means = factored.means;
}

// A model's own update has all states of a unit, whole.
void UpdateTable::place_states(const Unit& unit, const Span& owned, UpdateRow& row) const {
  if (has_rules()) return;
  const ParameterUpdate& update = updates_.of(static_cast<int>(row.parameter));
  for (const size_t s : update.states) {
    const auto i = static_cast<size_t>(row.num_states++);
    row.states[i] = static_cast<int32_t>(s);
    if (is_whole(updates_, unit, s)) continue;
    for (const StatePart& part : state_parts(updates_, unit, owned, s)) {
      if (part.param->parameter != row.parameter) continue;
      const int64_t origin = part.param->offset - owned.begin;
      row.shifts[i] = part.at - part.first - (update.factored ? 0 : origin);
    }
  }
}

std::vector<UpdateRow> UpdateTable::sum_rows(const Unit& unit, const Span& part) const {
  std::vector<UpdateRow> rows;
  for (const UnitParam& p : unit.params) {
    const ParameterUpdate& update = updates_.of(p.parameter);
    const int64_t begin = std::max(part.begin, p.offset);
    const int64_t end = std::min(part.begin + part.numel, p.offset + update.shape.numel());
    if (!update.factored || begin >= end) continue;
    UpdateRow& row = rows.emplace_back();
    row.begin = begin - part.begin;
    row.end = end - part.begin;
    row.parameter = p.parameter;
    row.first = begin - p.offset;
    row.numel = update.shape.numel();
    row.group = update.group;
    place_factors(row, update);
  }
  return rows;
}

}  // namespace ofsdp::runtime
