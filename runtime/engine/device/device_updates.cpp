#include "runtime/engine/device/device_updates.h"

#include <algorithm>
#include <utility>

namespace ofsdp::runtime {

DeviceFactors::DeviceFactors(const DeviceFactorsContext& context) : context_(context) {
  float* at = context.means;
  for (const Unit& unit : context.plan.units) {
    for (const OptimizerStep::Factored& f : context.optimizer.factored(unit.id)) {
      const auto parameter = static_cast<size_t>(f.parameter);
      means_.resize(std::max(means_.size(), parameter + 1));
      means_[parameter] = at;
      at += f.shape.matrices;
    }
  }
}

Status DeviceFactors::sum(int unit, Span part, const float* gradient, float* sums) const {
  Device& device = context_.device;
  for (const OptimizerStep::Factored& f : context_.optimizer.factored(unit)) {
    const int64_t begin = std::max(part.begin, f.offset);
    const int64_t end = std::min(part.begin + part.numel, f.offset + f.shape.numel());
    if (begin >= end) continue;
    const ofsdp_matrix_squares squares{f.shape.rows,
                                       f.shape.columns,
                                       begin - f.offset,
                                       end - begin,
                                       gradient + (begin - part.begin),
                                       sums + f.rows,
                                       sums + f.columns};
    OFSDP_RETURN_IF_ERROR(device.sum_matrix_squares(device.communication(), &squares)
                              .with_prefix("second moments of matrices"));
  }
  return {};
}

Status DeviceFactors::advance(int unit, const float* sums) const {
  Device& device = context_.device;
  const UnitState& state = context_.units[static_cast<size_t>(unit)];
  for (const OptimizerStep::Factored& f : context_.optimizer.factored(unit)) {
    const auto held = [&](size_t i, const StatePart& part) {
      return state.optimizer[context_.optimizer.state_index(f.parameter, i)].floats() + part.at;
    };
    const auto advance = [&](size_t i, const StatePart& part, int64_t first, int64_t length) {
      if (part.count == 0) return ok_status();
      const ofsdp_factor_advance step{held(i, part), sums + first + part.first, part.count, length,
                                      context_.state};
      return device.advance_factors(device.communication(), &step)
          .with_prefix("second moments of matrices");
    };
    OFSDP_RETURN_IF_ERROR(advance(0, f.held_rows, f.rows, f.shape.columns));
    OFSDP_RETURN_IF_ERROR(advance(1, f.held_columns, f.columns, f.shape.rows));
    const int64_t first = f.held_rows.first / f.shape.rows;
    const int64_t matrices = f.held_rows.count / f.shape.rows;
    if (matrices == 0) continue;
    OFSDP_RETURN_IF_ERROR(device
                              .mean_rows(device.communication(), held(0, f.held_rows), f.shape.rows,
                                         matrices, means_[static_cast<size_t>(f.parameter)] + first)
                              .with_prefix("second moments of matrices"));
  }
  return {};
}

DeviceStepLengths::DeviceStepLengths(const DeviceNormsContext& context, DeviceRanks& ranks)
    : context_(context), ranks_(ranks), parameters_(plan_device_norms(context.plan).parameters) {
  counts_.resize(static_cast<size_t>(parameters_));
  for (const Unit& unit : context.plan.units) {
    for (const UnitParam& p : unit.params) counts_[static_cast<size_t>(p.parameter)] = p.numel;
  }
  for (const Unit& unit : context.plan.units) {
    const UnitState& state = context.units[static_cast<size_t>(unit.id)];
    const Span part = context.plan.represented(unit, ranks.rank());
    const OptimizerStep& o = context.optimizer;
    owned_.push_back(
        parts_of(unit.id, {0, state.owned_numel}, [&](const auto& s) { return o.waits(s); }));
    represented_.push_back(parts_of(unit.id, {part.begin - state.owned_begin, part.numel},
                                    [&](const auto& s) { return o.needs_norms(s); }));
  }
}

// Gives the parts of elements `span` of what is owned, of segments that `takes` chooses.
template <typename Takes>
DeviceStepLengths::GroupParts DeviceStepLengths::parts_of(int unit, const Span& span,
                                                          const Takes& takes) const {
  GroupParts groups(context_.optimizer.updates().groups.size());
  int64_t at = span.begin;
  for (const OptimizerStep::Segment& segment :
       context_.optimizer.segments()[static_cast<size_t>(unit)]) {
    const int64_t stop = std::min(segment.end, span.begin + span.numel);
    if (stop <= at) continue;
    const int64_t begin = std::exchange(at, stop);
    if (!takes(segment)) continue;
    const auto part = part_of(unit, segment, begin, stop - begin);
    if (part.count > 0) groups[static_cast<size_t>(segment.group)].push_back(part);
  }
  return groups;
}

// Without the gap after a factored parameter, which has no factors.
ofsdp_parameter_part DeviceStepLengths::part_of(int unit, const OptimizerStep::Segment& segment,
                                                int64_t begin, int64_t count) const {
  ofsdp_parameter_part part{begin, count, segment.parameter, segment.weight_decay};
  if (!context_.optimizer.keeps_gradient(segment)) return part;
  const UnitState& state = context_.units[static_cast<size_t>(unit)];
  const ParameterUpdate& update = context_.optimizer.update_of(segment);
  const bool orthogonal = context_.optimizer.group_of(segment).optimizer->traits.orthogonal;
  for (size_t i = 0; i < update.states.size() && !orthogonal; ++i) {
    part.states[i] = context_.optimizer.state_of(state, segment, i);
  }
  part.adjust = update.adjust;
  part.numel = counts_[static_cast<size_t>(segment.parameter)];
  part.first = begin - segment.origin;
  if (!update.factored) return part;
  part.count = std::min(count, part.numel - part.first);
  part.rows = update.shape.rows;
  part.columns = update.shape.columns;
  part.means = context_.factors.means(segment.parameter);
  return part;
}

ofsdp_parameter_parts DeviceStepLengths::encode(int unit, const Parts& parts,
                                                const ofsdp_step_numbers* numbers) const {
  const UnitState& state = context_.units[static_cast<size_t>(unit)];
  ofsdp_parameter_parts p{};
  p.param = state.owned;
  const bool apart = !parts.empty() && parts[0].numel > 0;  // each part names its states
  if (!apart) std::ranges::transform(state.optimizer, p.states, &StoredState::floats);
  p.parts = parts.data();
  p.num_parts = static_cast<int64_t>(parts.size());
  p.squares = context_.squares;
  p.partials = context_.partials;
  p.state = context_.state;
  p.numbers = numbers;
  if (apart) p.gradient = state.gradient;
  return p;
}

Status DeviceStepLengths::agree(const ofsdp_step_numbers* numbers) {
  Device& device = context_.device;
  const size_t bytes = 2 * static_cast<size_t>(parameters_) * sizeof(double);
  OFSDP_RETURN_IF_ERROR(device.clear(device.communication(), context_.squares, bytes)
                            .with_prefix("norms of parameters"));
  for (const Unit& unit : context_.plan.units) {
    const GroupParts& groups = represented_[static_cast<size_t>(unit.id)];
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].empty()) continue;
      const ofsdp_parameter_parts p = encode(unit.id, groups[g], numbers);
      OFSDP_RETURN_IF_ERROR(
          device.add_squares(device.communication(), context_.on_device[g].get(), &p)
              .with_prefix("norms of parameters"));
    }
  }
  return ranks_.sum_parameter_norms(context_.squares, 2 * parameters_);
}

Status DeviceStepLengths::apply(int unit, const ofsdp_step_numbers* numbers) {
  const GroupParts& groups = owned_[static_cast<size_t>(unit)];
  Device& device = context_.device;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].empty()) continue;
    const ofsdp_parameter_parts p = encode(unit, groups[g], numbers);
    OFSDP_RETURN_IF_ERROR(device.take_step(device.communication(), context_.on_device[g].get(), &p)
                              .with_prefix("the optimizer's step"));
  }
  return {};
}

}  // namespace ofsdp::runtime
