// The trained file: each rank writes its own span of each unit.
#include "importer/dialects/training_info/state_places.h"
#include "runtime/engine/shared_text.h"
#include "runtime/program/unit_overlap.h"
#include "runtime/state/artifact_state.h"
#include "runtime/state/run_state.h"

namespace ofsdp::runtime {

// Rank 0 makes the temporary and tells the others where.
Result<ModelOutput> RunState::open_output(const std::string& path) {
  std::string ticket;
  std::vector<ModelOutput> own;
  if (communicator_.rank() == 0) {
    OFSDP_ASSIGN_OR_RETURN(ModelOutput output, ModelOutput::begin(setup_.file, path));
    ticket = output.ticket();
    own.push_back(std::move(output));
  }
  OFSDP_ASSIGN_OR_RETURN(const std::string shared, text_of_rank0(communicator_, ticket));
  if (communicator_.rank() == 0) return std::move(own[0]);
  return ModelOutput::join(setup_.file, shared);
}

// This rank's span of one unit.
Status RunState::write_unit(ModelOutput& output, const Unit& unit) const {
  const UnitState& state = units_[static_cast<size_t>(unit.id)];
  const Span mine = plan_.plan.represented(unit, communicator_.rank());
  for (const UnitParam& p : unit.params) {
    const Overlap part = overlap(p, mine.begin, mine.begin + mine.numel);
    if (part.count <= 0) continue;
    const Parameter& parameter = setup_.graph.parameters[static_cast<size_t>(p.parameter)];
    const float* values = state.owned + (mine.begin - state.owned_begin) + part.in_span;
    OFSDP_RETURN_IF_ERROR(output.write(static_cast<size_t>(parameter.initializer),
                                       part.in_parameter,
                                       {values, static_cast<size_t>(part.count)}));
    if (!setup_.rules) continue;
    const int64_t first = (mine.begin - state.owned_begin) + part.in_span;
    OFSDP_RETURN_IF_ERROR(write_states(output, state, p, first, part.in_parameter, part.count));
  }
  return {};
}

// The states of a training_info: `first` counts from what the rank owns of the unit.
Status RunState::write_states(ModelOutput& output, const UnitState& state, const UnitParam& p,
                              int64_t first, int64_t in_parameter, int64_t count) const {
  const int index = plan_.rules[static_cast<size_t>(p.parameter)];
  const UpdateRule& rule = setup_.rules->rules[static_cast<size_t>(index)];
  for (size_t i = 0; i < rule.states.size(); ++i) {
    if (rule.states[i].next == 0) continue;
    OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(setup_.file, rule.states[i]));
    const std::span<const float> values(state.optimizer[i] + first, static_cast<size_t>(count));
    OFSDP_RETURN_IF_ERROR(place.in_model ? output.write(place.index, in_parameter, values)
                                         : output.write_state(place.index, in_parameter, values));
  }
  return {};
}

// The count of updates and what else is the same for all parameters.
Status RunState::write_scalars(ModelOutput& output) const {
  const std::vector<UpdateState>& scalars = setup_.rules->scalars;
  const int64_t done = plan_.train_sampler[0].options().start.update;
  for (size_t i = 0; i < scalars.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(setup_.file, scalars[i]));
    const auto bytes = update_program_->scalar_after(i, executor_->updates_done(done));
    const bool floating = is_floating(state_source(setup_.file, place).dtype);
    if (!floating) {
      OFSDP_RETURN_IF_ERROR(output.write_scalar(place.index, bytes));
      continue;
    }
    const std::span<const float> value(reinterpret_cast<const float*>(bytes.data()), 1);
    OFSDP_RETURN_IF_ERROR(place.in_model ? output.write(place.index, 0, value)
                                         : output.write_state(place.index, 0, value));
  }
  return {};
}

// Running statistics: rank 0's are the run's.
Status RunState::write_carried(ModelOutput& output) const {
  for (const KeptPlan::Entry& entry : plan_.kept.entries()) {
    if (entry.parameter < 0 || !is_carried(plan_, entry.parameter)) continue;
    const Parameter& parameter = setup_.graph.parameters[static_cast<size_t>(entry.parameter)];
    const auto* values = reinterpret_cast<const float*>(memory_.kept.data() + entry.offset);
    const std::span<const float> all(values, static_cast<size_t>(entry.desc.numel()));
    OFSDP_RETURN_IF_ERROR(output.write(static_cast<size_t>(parameter.initializer), 0, all));
  }
  return {};
}

Status RunState::write_shares(ModelOutput& output) const {
  for (const Unit& unit : plan_.plan.units) OFSDP_RETURN_IF_ERROR(write_unit(output, unit));
  if (communicator_.rank() == 0) OFSDP_RETURN_IF_ERROR(write_carried(output));
  if (communicator_.rank() == 0 && setup_.rules) OFSDP_RETURN_IF_ERROR(write_scalars(output));
  return output.finish();
}

Status RunState::write_output(const std::string& path) {
  OFSDP_RETURN_IF_ERROR(fetch());
  OFSDP_ASSIGN_OR_RETURN(ModelOutput output, open_output(path));
  OFSDP_RETURN_IF_ERROR(write_shares(output).with_prefix(path));
  OFSDP_RETURN_IF_ERROR(communicator_.barrier({"output barrier", -1, 0}));
  return communicator_.rank() == 0 ? output.commit() : Status{};
}

}  // namespace ofsdp::runtime
