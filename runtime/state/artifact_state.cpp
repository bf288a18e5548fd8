#include "runtime/state/artifact_state.h"

#include <algorithm>

#include "runtime/engine/shared_text.h"
#include "runtime/state/run_state.h"

namespace ofsdp::runtime {
namespace {

// Elements [begin, end) of a unit, f(parameter, first element in it, offset in the span, count).
template <typename F>
Status for_each_part(const Unit& unit, const Span& span, const F& f) {
  for (const UnitParam& p : unit.params) {
    const int64_t begin = std::max(p.offset, span.begin);
    const int64_t end = std::min(p.offset + p.numel, span.begin + span.numel);
    if (begin >= end) continue;
    OFSDP_RETURN_IF_ERROR(f(p, begin - p.offset, begin - span.begin, end - begin));
  }
  return {};
}

size_t state_count(const RunPlan& plan) {
  return plan.optimizer->state_names(plan.settings).size();
}

Status write_shares(const RunPlan& plan, const ModelSetup& setup, RunState& state, int rank,
                    size_t moments, const OrtOutput& output) {
  const int states = static_cast<int>(std::min(moments, state_count(plan)));
  for (const Unit& unit : plan.plan.units) {
    const Span mine = plan.plan.represented(unit, rank);
    const int64_t skipped = mine.begin - plan.plan.owned(unit, rank).begin;
    for (int k = -1; k < states; ++k) {
      const float* values = state.held(unit.id, k) + skipped;
      OFSDP_RETURN_IF_ERROR(for_each_part(
          unit, mine, [&](const UnitParam& p, int64_t first, int64_t at, int64_t count) {
            const std::span<const float> part(values + at, static_cast<size_t>(count));
            return k < 0 ? output.write(p.name, first, part)
                         : output.write_moment(static_cast<size_t>(k), p.name, first, part);
          }));
    }
  }
  if (rank != 0) return output.finish();
  for (const KeptPlan::Entry& entry : plan.kept.entries()) {  // running statistics: rank 0's
    if (entry.parameter < 0 || !is_carried(plan, entry.parameter)) continue;
    const std::string& name = setup.graph.parameters[static_cast<size_t>(entry.parameter)].name;
    OFSDP_RETURN_IF_ERROR(output.write(name, 0, state.kept(entry)));
  }
  return output.finish();
}

}  // namespace

Status load_moments(const RunPlan& plan, const ModelSetup& setup, RunState& state, int rank) {
  const OrtCheckpoint& checkpoint = setup.artifacts->checkpoint;
  const int file = static_cast<int>(setup.file.contents().data_files.size());  // the last
  for (const Unit& unit : plan.plan.units) {
    const Span mine = plan.plan.owned(unit, rank);
    for (size_t k = 0; k < state_count(plan); ++k) {
      float* values = state.held(unit.id, static_cast<int>(k));
      OFSDP_RETURN_IF_ERROR(for_each_part(
          unit, mine, [&](const UnitParam& p, int64_t first, int64_t at, int64_t count) -> Status {
            const OrtParameterState* moments = checkpoint.state_of(p.name);
            if (moments == nullptr || moments->moments.size() <= k) return {};
            const OrtTensor& t = moments->moments[k];
            const Initializer source = as_initializer(t, file);
            if (!is_floating(source.dtype) || t.shape.numel() != p.numel) {
              return input_error("{}: '{}' of '{}': expected {} floats, found {} of ONNX type {}",
                                 setup.artifacts->paths.checkpoint, t.name, p.name, p.numel,
                                 t.shape.text(), t.onnx_type);
            }
            return setup.file.read(source, first, {values + at, static_cast<size_t>(count)});
          }));
    }
  }
  return {};
}

OrtTrainedState trained_state(const Options& options, const ModelSetup& setup, int64_t updates) {
  const OptimizerOptions& o = options.optimizer;
  OrtTrainedState state{o.steps_done + updates, static_cast<float>(o.lr), 0};
  // Without an optimizer model nobody could read what another optimizer has left.
  if (!setup.artifacts->paths.optimizer.empty())
    state.moments = o.kind == OptimizerKind::kSgd ? 1 : 2;
  return state;
}

Status write_artifacts(const RunPlan& plan, const ModelSetup& setup, RunState& state,
                       Communicator& communicator, const OrtTrainedState& trained,
                       const std::string& path) {
  OFSDP_RETURN_IF_ERROR(state.fetch());
  const OrtSource source{*setup.artifacts, setup.file};
  const int rank = communicator.rank();
  std::vector<OrtOutput> output;
  if (rank == 0) {
    OFSDP_ASSIGN_OR_RETURN(OrtOutput made, OrtOutput::begin(source, trained, path));
    output.push_back(std::move(made));
  }
  OFSDP_ASSIGN_OR_RETURN(const std::string ticket,
                         text_of_rank0(communicator, rank == 0 ? output[0].ticket() : ""));
  if (rank != 0) {
    OFSDP_ASSIGN_OR_RETURN(OrtOutput made, OrtOutput::join(source, trained, ticket));
    output.push_back(std::move(made));
  }
  OFSDP_RETURN_IF_ERROR(
      write_shares(plan, setup, state, rank, trained.moments, output[0]).with_prefix(path));
  OFSDP_RETURN_IF_ERROR(communicator.barrier({"output barrier", -1, 0}));
  return rank == 0 ? output[0].commit() : Status{};
}

}  // namespace ofsdp::runtime
