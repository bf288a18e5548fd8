#include "runtime/engine/device/device_step_lengths.h"

#include <algorithm>
#include <utility>

namespace ofsdp::runtime {

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
