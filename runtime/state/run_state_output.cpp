// The trained file: each rank writes its own span of each unit.
#include "runtime/engine/shared_text.h"
#include "runtime/program/unit_overlap.h"
#include "runtime/state/run_state.h"

namespace ofsdp::runtime {

TrainedState trained_state(const Options& options, int64_t updates) {
  const OptimizerOptions& o = options.optimizer;
  return {.step = o.steps_done + updates,
          .learning_rate = static_cast<float>(o.lr),
          .states = o.kind == OptimizerKind::kSgd ? size_t{1} : size_t{2}};
}

// Rank 0 makes the temporary and sends its place to the others.
Result<std::unique_ptr<TrainedOutput>> RunState::open_output(const std::string& path,
                                                             const TrainedState& trained) {
  std::string ticket;
  std::unique_ptr<TrainedOutput> own;
  if (communicator_.rank() == 0) {
    OFSDP_ASSIGN_OR_RETURN(own, setup_.source->begin_output(path, trained));
    ticket = own->ticket();
  }
  OFSDP_ASSIGN_OR_RETURN(const std::string shared, text_of_rank0(communicator_, ticket));
  if (own != nullptr) return own;
  return setup_.source->join_output(shared, trained);
}

// Writes this rank's span of one unit: parameters, and states that the output has a place for.
Status RunState::write_unit(const TrainedOutput& output, const Unit& unit) const {
  const UnitState& state = units_[static_cast<size_t>(unit.id)];
  const Span mine = plan_.plan.represented(unit, communicator_.rank());
  for (const UnitParam& p : unit.params) {
    const Overlap part = overlap(p, mine.begin, mine.begin + mine.numel);
    if (part.count <= 0) continue;
    const Parameter& parameter = setup_.graph.parameters[static_cast<size_t>(p.parameter)];
    const int64_t first = (mine.begin - state.owned_begin) + part.in_span;
    const auto count = static_cast<size_t>(part.count);
    OFSDP_RETURN_IF_ERROR(output.write(parameter, part.in_parameter, {state.owned + first, count}));
    for (size_t k = 0; k < state.optimizer.size(); ++k) {
      OFSDP_RETURN_IF_ERROR(
          output.write_state(parameter, k, part.in_parameter, {state.optimizer[k] + first, count}));
    }
  }
  return {};
}

// The count of updates and other values that all parameters share.
Status RunState::write_scalars(const TrainedOutput& output) const {
  if (update_program_ == nullptr) return {};
  const int64_t done = plan_.train_sampler[0].options().start.update;
  for (size_t i = 0; i < setup_.source->updates()->scalars.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(
        output.write_scalar(i, update_program_->scalar_after(i, executor_->updates_done(done))));
  }
  return {};
}

// Running statistics: rank 0's are the run's.
Status RunState::write_carried(const TrainedOutput& output) const {
  for (const KeptPlan::Entry& entry : plan_.kept.entries()) {
    if (entry.parameter < 0 || !is_carried(plan_, entry.parameter)) continue;
    const Parameter& parameter = setup_.graph.parameters[static_cast<size_t>(entry.parameter)];
    const auto* values = reinterpret_cast<const float*>(memory_.kept.data() + entry.offset);
    const std::span<const float> all(values, static_cast<size_t>(entry.desc.numel()));
    OFSDP_RETURN_IF_ERROR(output.write(parameter, 0, all));
  }
  return {};
}

Status RunState::write_shares(const TrainedOutput& output) const {
  for (const Unit& unit : plan_.plan.units) OFSDP_RETURN_IF_ERROR(write_unit(output, unit));
  if (communicator_.rank() == 0) {
    OFSDP_RETURN_IF_ERROR(write_carried(output));
    OFSDP_RETURN_IF_ERROR(write_scalars(output));
  }
  return output.finish();
}

Status RunState::write_output(const std::string& path, const TrainedState& trained) {
  OFSDP_RETURN_IF_ERROR(fetch());
  OFSDP_ASSIGN_OR_RETURN(const auto output, open_output(path, trained));
  OFSDP_RETURN_IF_ERROR(write_shares(*output).with_prefix(path));
  OFSDP_RETURN_IF_ERROR(communicator_.barrier({"output barrier", -1, 0}));
  return communicator_.rank() == 0 ? output->commit() : Status{};
}

}  // namespace ofsdp::runtime
