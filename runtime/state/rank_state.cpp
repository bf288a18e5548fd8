#include "runtime/state/rank_state.h"

#include "runtime/data/loader.h"
#include "runtime/state/weight_loader.h"

namespace ofsdp::runtime {

Result<std::unique_ptr<RankState>> RankState::make(const RunPlan& plan, const ModelSetup& setup,
                                                   Communicator& communicator, MemoryLedger& ledger,
                                                   const ExecutorOptions& options,
                                                   CheckpointReader* checkpoint,
                                                   RankState* before) {
  std::unique_ptr<RankState> state(new RankState(plan, setup, communicator));
  OFSDP_RETURN_IF_ERROR(state->memory_.map(plan, communicator, ledger));
  const int64_t batch = plan.train_sampler->options().batch_size;
  state->eval_staging_ =
      align_up(Loader::staging_bytes(setup.data.train_rows(), batch), kTensorAlignment);
  OFSDP_RETURN_IF_ERROR(load_values(*state, checkpoint, before));
  ExecutorOptions traced = options;
  if (plan.memory.trace > 0) {
    const Region& events = state->memory_.host.trace;
    state->trace_ = std::make_unique<TraceRecorder>(std::span(events.data(), events.bytes()));
    traced.trace = state->trace_.get();
  }
  if (plan.memory.watch > 0) {
    const Region& norms = state->memory_.host.watch;
    state->watch_ = std::make_unique<Watch>(plan.plan, plan.watch_interval,
                                            std::span(norms.data(), norms.bytes()));
    traced.watch = state->watch_.get();
  }
  OFSDP_RETURN_IF_ERROR(
      make_runner(plan, setup, communicator, state->memory_, traced, state->runner_));
  if (before != nullptr) {
    state->executor().loss_scale() = before->executor().loss_scale();
  } else if (checkpoint != nullptr && checkpoint->manifest().loss_scale) {
    const SavedLossScale& saved = *checkpoint->manifest().loss_scale;
    state->executor().loss_scale() = {saved.scale, saved.good_updates, saved.skipped_updates};
  }
  // Nobody gathers before all shards are there.
  OFSDP_RETURN_IF_ERROR(communicator.barrier({"loading barrier", -1, 0}));
  return state;
}

BoundProgram& RankState::program(const ProgramKey& key) {
  const auto it = runner_.programs.find(key);
  if (it != runner_.programs.end()) return it->second;
  for (auto& [other, program] : runner_.programs) {
    ProgramKey same = other;
    same.batch = key.batch;
    if (key.batch == 0 && same == key) return program;
  }
  OFSDP_CHECK(false, "a micro-batch of {} samples was not planned", key.batch);
}

namespace {

float* floats_of(const StoredState& state) {
  OFSDP_CHECK(state.form == StateForm::kFloat32, "a state that is not float32");
  return state.floats();
}

}  // namespace

ShardView RankState::held(const Unit& unit, int state) const {
  const UnitState& u = memory_.units[static_cast<size_t>(unit.id)];
  return {unit,
          {u.owned_begin, u.owned_numel},
          state < 0 ? u.owned : floats_of(u.optimizer[static_cast<size_t>(state)])};
}

ShardView RankState::share(const Unit& unit, int state) const {
  const UnitState& u = memory_.units[static_cast<size_t>(unit.id)];
  const Span mine = plan_.plan.represented(unit, rank());
  return {unit, mine, held(unit, state).values() + (mine.begin - u.owned_begin)};
}

std::span<std::byte> RankState::kept(const KeptPlan::Entry& entry) const {
  return {memory_.host.kept.data() + entry.offset, entry.desc.bytes()};
}

std::span<float> RankState::statistic(const KeptPlan::Entry& entry) const {
  return {reinterpret_cast<float*>(kept(entry).data()), static_cast<size_t>(entry.desc.numel())};
}

}  // namespace ofsdp::runtime
