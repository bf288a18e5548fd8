#include "runtime/engine/state_layout.h"

#include <algorithm>

#include "kernels/core/memory.h"
#include "kernels/optimizers/factors.h"

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

// Elements [begin, end) of the flat unit, counted from the parameter's first.
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

// A matrix is the rank's that has its first element.
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

std::vector<std::vector<int64_t>> state_numels(const UpdatePlan& updates, const Plan& plan) {
  std::vector<std::vector<int64_t>> units;
  for (const Unit& unit : plan.units) {
    std::vector<int64_t>& numels = units.emplace_back(updates.states.size(), 0);
    for (size_t state = 0; state < numels.size(); ++state) {
      if (is_whole(updates, unit, state)) {
        numels[state] = plan.owned_numel(unit);
        continue;
      }
      for (int rank = 0; rank < unit.plan.shards; ++rank) {
        const auto parts = state_parts(updates, unit, plan.owned(unit, rank), state);
        if (parts.empty()) continue;
        numels[state] =
            std::max(numels[state], parts.back().at + aligned(updates, parts.back().count));
      }
    }
  }
  return units;
}

}  // namespace ofsdp::runtime
