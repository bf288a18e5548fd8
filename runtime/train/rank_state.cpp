#include "runtime/train/rank_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/host_tasks.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "runtime/compile/saved_slices.h"
#include "runtime/data/loader.h"
#include "runtime/train/checkpointing.h"

namespace ofsdp::runtime {
namespace {

// Loading: constants, frozen parameters, weights and optimizer states, from the model file,
// training artifacts or a checkpoint. Each rank reads only the values that it holds.

const OnnxFile& file_of(const RankState& state, int parameter) {
  return state.setup().source->file_of(state.parameter(parameter));
}

const Initializer& source_of(const RankState& state, int parameter) {
  const int initializer = state.parameter(parameter).initializer;
  return file_of(state, parameter).initializers()[static_cast<size_t>(initializer)];
}

// The model file's values; if a checkpoint is evaluated, its values take precedence.
class Values {
 public:
  Values(const RankState& state, CheckpointReader* evaluated)
      : state_(state), evaluated_(evaluated) {
    if (evaluated == nullptr) return;
    const Manifest& m = evaluated->manifest();
    for (const NamedTensor& tensor : m.trained) kinds_[tensor.name] = state.plan().evaluated;
    for (const NamedTensor& tensor : m.statistics) kinds_[tensor.name] = kStatisticKind;
  }

  Status read(int parameter, int64_t first, std::span<float> dst) const {
    const auto found = kinds_.find(state_.parameter(parameter).name);
    if (found == kinds_.end()) {
      return file_of(state_, parameter).read(source_of(state_, parameter), first, dst);
    }
    if (found->second != kStatisticKind) {
      return evaluated_->read(found->second, found->first, first, dst);
    }
    std::vector<float> all(static_cast<size_t>(source_of(state_, parameter).shape.numel()));
    const int from = evaluated_->manifest().world == state_.plan().shards.world ? state_.rank() : 0;
    OFSDP_RETURN_IF_ERROR(evaluated_->read_statistic(found->first, from, all));
    std::copy_n(all.begin() + first, dst.size(), dst.begin());
    return {};
  }

 private:
  const RankState& state_;
  CheckpointReader* evaluated_;
  std::map<std::string, std::string> kinds_;  // tensors in the checkpoint, with kinds
};

// Converts in pieces, so that no value is in memory twice.
Status load_converted(const Values& values, int parameter, const Span& elements, DType dtype,
                      std::byte* target) {
  if (dtype == DType::kFloat32) {
    return values.read(parameter, elements.begin,
                       {reinterpret_cast<float*>(target), static_cast<size_t>(elements.numel)});
  }
  std::array<float, 8192> piece;
  for (int64_t done = 0; done < elements.numel; done += static_cast<int64_t>(piece.size())) {
    const auto count = std::min(piece.size(), static_cast<size_t>(elements.numel - done));
    OFSDP_RETURN_IF_ERROR(values.read(parameter, elements.begin + done, {piece.data(), count}));
    narrow(piece.data(), dtype, target + static_cast<size_t>(done) * dtype_size(dtype),
           static_cast<int64_t>(count));
  }
  return {};
}

// Loads `elements` from the flat array, `size` bytes each. The last may end past the data.
Status load_raw(const RankState& state, int parameter, const Span& elements, size_t size,
                std::byte* target) {
  const Initializer& source = source_of(state, parameter);
  const int64_t width = static_cast<int64_t>(size), first = elements.begin * width;
  const int64_t bytes = std::min(elements.numel * width, source.raw_bytes() - first);
  return file_of(state, parameter).read_raw(source, first, {target, static_cast<size_t>(bytes)});
}

Status load_kept(const RankState& state, const Values& values) {
  for (const KeptValues::Entry& entry : state.plan().kept.entries()) {
    std::byte* const target = state.kept(entry).data();
    if (entry.constant == nullptr && state.parameter(entry.parameter).raw) {
      const auto bytes = static_cast<int64_t>(entry.desc.bytes());
      OFSDP_RETURN_IF_ERROR(load_raw(state, entry.parameter, {0, bytes}, 1, target));
    } else if (entry.constant == nullptr) {
      OFSDP_RETURN_IF_ERROR(load_converted(values, entry.parameter, {0, entry.desc.numel()},
                                           entry.desc.dtype, target));
    } else if (!entry.constant->bytes.empty()) {
      std::memcpy(target, entry.constant->bytes.data(), entry.constant->bytes.size());
    }
  }
  return {};
}

// Loads this rank's elements of frozen parameters.
Status load_frozen(const RankState& state, const Values& values) {
  const Plan& plan = state.plan().shards;
  for (const Unit& unit : plan.units) {
    const Span mine = plan.owned_frozen(unit, state.rank());
    OFSDP_RETURN_IF_ERROR(for_each_part(
        unit.frozen, mine.begin, mine.numel,
        [&](const UnitParam& p, int64_t first, int64_t at, int64_t count) {
          const size_t size = dtype_size(plan.param_dtype);
          std::byte* const target = state.frozen(unit) + static_cast<size_t>(at) * size;
          if (state.parameter(p.parameter).raw) {
            return load_raw(state, p.parameter, {first, count}, size, target);
          }
          return load_converted(values, p.parameter, {first, count}, plan.param_dtype, target);
        }));
  }
  return {};
}

// Both states have the same units, so the spans have equal lengths.
void copy_trained(const RankState& from, const RankState& to) {
  const auto states = static_cast<int>(to.plan().updates.states.size());
  const auto numels = state_numels(to.plan().updates, to.plan().shards, to.rank());
  for (const Unit& unit : to.plan().shards.units) {
    const int64_t owned = to.plan().shards.owned(unit, to.rank()).numel;
    std::copy_n(from.held(unit, -1).values(), owned, to.held(unit, -1).values());
    for (int state = 0; state < states; ++state) {
      const int64_t numel = numels[static_cast<size_t>(unit.id)][static_cast<size_t>(state)];
      const StoredState& source = from.stored(unit, state);
      std::copy_n(source.elements, stored_bytes(source.form, numel),
                  to.stored(unit, state).elements);
    }
  }
  const auto sources = carried_entries(from.plan());
  for (const KeptValues::Entry* entry : carried_entries(to.plan())) {
    const auto same = std::ranges::find(sources, entry->parameter, &KeptValues::Entry::parameter);
    OFSDP_CHECK(same != sources.end(), "a statistic that was not planned before");
    std::ranges::copy(from.statistic(**same), to.statistic(*entry).begin());
  }
}

// Before the first update the average equals the parameters.
void begin_average(const RankState& state, const Unit& unit) {
  std::copy_n(state.held(unit, -1).values(), state.plan().shards.owned(unit, state.rank()).numel,
              state.held(unit, state.plan().updates.average_state()).values());
}

// Loads the weights, one task a unit, then the optimizer states that the source has.
Status load_weights(const RankState& state) {
  const TrainingSource& source = *state.setup().source;
  const std::vector<Unit>& units = state.plan().shards.units;
  const int threads = source.file().one_thread_reads() ? 1 : pool_threads();
  OFSDP_RETURN_IF_ERROR(for_each_task(threads, static_cast<int64_t>(units.size()), [&](int64_t i) {
    const Unit& unit = units[static_cast<size_t>(i)];
    return state.held(unit, -1).for_each_part([&](const ShardPart& part) {
      return source.file().read(source_of(state, part.param.parameter), part.first, part.values);
    });
  }));
  const UpdatePlan& updates = state.plan().updates;
  const int states = static_cast<int>(updates.states.size()) - (updates.average_decay ? 1 : 0);
  for (const Unit& unit : units) {
    if (updates.average_decay) begin_average(state, unit);
    for (int k = 0; k < states; ++k) {
      OFSDP_RETURN_IF_ERROR(state.each_state(unit, k, [&](const ShardPart& part) {
        return source.load_state(state.parameter(part.param.parameter), static_cast<size_t>(k),
                                 part.first, part.values);
      }));
    }
  }
  return {};
}

// Loads trained parameters from the evaluated checkpoint.
Status load_evaluated(const RankState& state, const Values& values) {
  for (const Unit& unit : state.plan().shards.units) {
    OFSDP_RETURN_IF_ERROR(state.held(unit, -1).for_each_part([&](const ShardPart& part) {
      return values.read(part.param.parameter, part.first, part.values);
    }));
  }
  return {};
}

// Takes the trained state from `before` if given, else from the checkpoint, else from the model.
// REQUIRES: `before` has the same units and has been fetched.
Status load_values(const RankState& state, CheckpointReader* checkpoint, const RankState* before) {
  const bool evaluates = checkpoint != nullptr && !state.plan().evaluated.empty();
  const Values values(state, evaluates ? checkpoint : nullptr);
  OFSDP_RETURN_IF_ERROR(load_kept(state, values));
  OFSDP_RETURN_IF_ERROR(load_frozen(state, values));
  if (evaluates) return load_evaluated(state, values);
  if (before != nullptr) {
    copy_trained(*before, state);
    return {};
  }
  return checkpoint != nullptr ? load_checkpoint(*checkpoint, state) : load_weights(state);
}

}  // namespace

Result<std::unique_ptr<RankState>> RankState::make(const CompiledRun& plan, const ModelSetup& setup,
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
    state->watch_ = std::make_unique<Watch>(plan.shards, plan.watch_interval,
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
  // No rank may gather before all shards are loaded.
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
  const Span mine = plan_.shards.represented(unit, rank());
  return {unit, mine, held(unit, state).values() + (mine.begin - u.owned_begin)};
}

std::span<std::byte> RankState::kept(const KeptValues::Entry& entry) const {
  return {memory_.host.kept.data() + entry.offset, entry.desc.bytes()};
}

std::span<float> RankState::statistic(const KeptValues::Entry& entry) const {
  return {reinterpret_cast<float*>(kept(entry).data()), static_cast<size_t>(entry.desc.numel())};
}

}  // namespace ofsdp::runtime
