#include "runtime/state/trained_writer.h"

#include "runtime/engine/shared_text.h"
#include "runtime/plan/saved_slices.h"

namespace ofsdp::runtime {
namespace {

// Rank 0 makes the temporary and sends its place to the others.
Result<std::unique_ptr<TrainedOutput>> open_output(const TrainingSource& source,
                                                   Communicator& communicator,
                                                   const std::string& path,
                                                   const TrainedState& trained) {
  if (communicator.rank() != 0) {
    OFSDP_ASSIGN_OR_RETURN(const std::string ticket, text_of_rank0(communicator, ""));
    return source.join_output(ticket, trained);
  }
  OFSDP_ASSIGN_OR_RETURN(auto output, source.begin_output(path, trained));
  OFSDP_RETURN_IF_ERROR(text_of_rank0(communicator, output->ticket()).status());
  return output;
}

// Writes this rank's share of one unit: parameters or their average, and states that the output has
// a place for.
Status write_unit(const RankState& state, const Unit& unit, const TrainedOutput& output) {
  const auto parameter = [&](const ShardPart& part) -> const Parameter& {
    return state.parameter(part.param.parameter);
  };
  const UpdatePlan& updates = state.plan().updates;
  const int weights = state.plan().uses_average ? updates.average_state() : -1;
  OFSDP_RETURN_IF_ERROR(state.share(unit, weights).for_each_part([&](const ShardPart& part) {
    return output.write(parameter(part), part.first, part.values);
  }));
  const size_t states = updates.states.size() - (updates.average_decay ? 1 : 0);
  for (size_t k = 0; k < states; ++k) {
    OFSDP_RETURN_IF_ERROR(
        state.share(unit, static_cast<int>(k)).for_each_part([&](const ShardPart& part) {
          return output.write_state(parameter(part), k, part.first, part.values);
        }));
  }
  return {};
}

// Rank 0's: the running statistics, and the count of updates and other values that all parameters
// share.
Status write_common(RankState& state, const TrainedOutput& output) {
  for (const KeptPlan::Entry* entry : carried_entries(state.plan())) {
    OFSDP_RETURN_IF_ERROR(
        output.write(state.parameter(entry->parameter), 0, state.statistic(*entry)));
  }
  if (state.update_program() == nullptr) return {};
  const int64_t done =
      state.executor().updates_done(state.plan().train_sampler->options().start.update);
  for (size_t i = 0; i < state.setup().source->updates()->scalars.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(output.write_scalar(i, state.update_program()->scalar_after(i, done)));
  }
  return {};
}

Status write_shares(RankState& state, const TrainedOutput& output) {
  for (const Unit& unit : state.plan().plan.units) {
    OFSDP_RETURN_IF_ERROR(write_unit(state, unit, output));
  }
  if (state.rank() == 0) OFSDP_RETURN_IF_ERROR(write_common(state, output));
  return output.finish();
}

}  // namespace

Status write_trained(RankState& state, Communicator& communicator, const std::string& path,
                     const TrainedState& trained) {
  OFSDP_RETURN_IF_ERROR(state.fetch());
  OFSDP_ASSIGN_OR_RETURN(const auto output,
                         open_output(*state.setup().source, communicator, path, trained));
  OFSDP_RETURN_IF_ERROR(write_shares(state, *output).with_prefix(path));
  OFSDP_RETURN_IF_ERROR(communicator.barrier({"output barrier", -1, 0}));
  return state.rank() == 0 ? output->commit() : Status{};
}

}  // namespace ofsdp::runtime
