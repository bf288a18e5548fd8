#include "runtime/engine/device/device_step_lengths.h"

#include <algorithm>

namespace ofsdp::runtime {

DeviceStepLengths::DeviceStepLengths(const DeviceNormsContext& context, DeviceRanks& ranks)
    : context_(context), ranks_(ranks), parameters_(plan_device_norms(context.plan).parameters) {
  for (const Unit& unit : context.plan.units) {
    const UnitState& state = context.units[static_cast<size_t>(unit.id)];
    const Span part = context.plan.represented(unit, ranks.rank());
    owned_.push_back(parts_of(unit.id, {0, state.owned_numel}));
    represented_.push_back(parts_of(unit.id, {part.begin - state.owned_begin, part.numel}));
  }
}

// Gives the parts of elements `span` of what is owned.
DeviceStepLengths::Parts DeviceStepLengths::parts_of(int unit, const Span& span) const {
  Parts parts;
  int64_t at = span.begin;
  for (const OptimizerStep::Segment& segment :
       context_.optimizer.segments()[static_cast<size_t>(unit)]) {
    const int64_t stop = std::min(segment.end, span.begin + span.numel);
    if (stop <= at) continue;
    parts.push_back({at, stop - at, segment.parameter, segment.weight_decay});
    at = stop;
  }
  return parts;
}

ofsdp_parameter_parts DeviceStepLengths::encode(int unit, const Parts& parts,
                                                const ofsdp_step_numbers* numbers) const {
  const UnitState& state = context_.units[static_cast<size_t>(unit)];
  ofsdp_parameter_parts p{};
  p.param = state.owned;
  std::ranges::transform(state.optimizer, p.states, &StoredState::floats);
  p.parts = parts.data();
  p.num_parts = static_cast<int64_t>(parts.size());
  p.squares = context_.squares;
  p.partials = context_.partials;
  p.state = context_.state;
  p.numbers = numbers;
  return p;
}

Status DeviceStepLengths::agree(const ofsdp_step_numbers* numbers) {
  Device& device = context_.device;
  const size_t bytes = 2 * static_cast<size_t>(parameters_) * sizeof(double);
  OFSDP_RETURN_IF_ERROR(device.clear(device.communication(), context_.squares, bytes)
                            .with_prefix("norms of parameters"));
  for (const Unit& unit : context_.plan.units) {
    const Parts& parts = represented_[static_cast<size_t>(unit.id)];
    if (parts.empty()) continue;
    const ofsdp_parameter_parts p = encode(unit.id, parts, numbers);
    OFSDP_RETURN_IF_ERROR(device.add_squares(device.communication(), context_.on_device, &p)
                              .with_prefix("norms of parameters"));
  }
  return ranks_.sum_parameter_norms(context_.squares, 2 * parameters_);
}

Status DeviceStepLengths::apply(int unit, const ofsdp_step_numbers* numbers) {
  const Parts& parts = owned_[static_cast<size_t>(unit)];
  if (parts.empty()) return {};
  Device& device = context_.device;
  const ofsdp_parameter_parts p = encode(unit, parts, numbers);
  return device.take_step(device.communication(), context_.on_device, &p)
      .with_prefix("the optimizer's step");
}

}  // namespace ofsdp::runtime
