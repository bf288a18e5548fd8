#include "runtime/state/run_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"
#include "runtime/data/loader.h"
#include "runtime/program/unit_overlap.h"
#include "runtime/state/checkpoint_state.h"

namespace ofsdp::runtime {

Result<std::unique_ptr<RunState>> RunState::make(const RunPlan& plan, const ModelSetup& setup,
                                                 Communicator& communicator, MemoryLedger& ledger,
                                                 const ExecutorOptions& options,
                                                 CheckpointReader* checkpoint) {
  std::unique_ptr<RunState> state(new RunState(plan, setup, communicator));
  OFSDP_RETURN_IF_ERROR(state->map(ledger));
  state->units_ = unit_states(plan.plan, communicator.rank(), plan.memory, state->memory_.bases());
  if (plan.memory.offload.bytes > 0) {
    state->units_ = offloaded_units(plan.memory.offload, plan.plan.offload,
                                    state->offloaded_.data(), std::move(state->units_));
  }
  OFSDP_RETURN_IF_ERROR(state->load(checkpoint));
  ExecutorOptions traced = options;
  if (plan.memory.trace > 0) {
    const Region& events = state->memory_.trace;
    state->trace_ = std::make_unique<TraceRecorder>(std::span(events.data(), events.bytes()));
    traced.trace = state->trace_.get();
  }
  OFSDP_RETURN_IF_ERROR(plan.device == nullptr ? state->make_executor(traced)
                                               : state->make_device_executor(traced));
  if (checkpoint != nullptr && checkpoint->manifest().loss_scale) {
    const SavedLossScale& saved = *checkpoint->manifest().loss_scale;
    state->executor_->loss_scale() = {saved.scale, saved.good_updates, saved.skipped_updates};
  }
  // Nobody gathers before all shards are there.
  OFSDP_RETURN_IF_ERROR(communicator.barrier({"loading barrier", -1, 0}));
  return state;
}

Status RunState::map(MemoryLedger& ledger) {
  if (plan_.device != nullptr) {
    OFSDP_RETURN_IF_ERROR(map_images(ledger));
    staging_ = device_memory_.staging();
  } else {
    OFSDP_ASSIGN_OR_RETURN(memory_, RankMemory::map(plan_.memory, ledger, communicator_));
    staging_ = {memory_.staging.data(), memory_.staging.bytes()};
  }
  const RowSource* train =
      setup_.data.train ? setup_.data.train.get() : setup_.data.synthetic.get();
  const int64_t batch = plan_.train_sampler[0].options().batch_size;
  eval_staging_ = align_up(Loader::staging_bytes(*train, batch), kTensorAlignment);
  return {};
}

Status RunState::load(CheckpointReader* checkpoint) {
  OFSDP_RETURN_IF_ERROR(load_kept());
  OFSDP_RETURN_IF_ERROR(load_frozen());
  if (checkpoint != nullptr) return load_state(*checkpoint, plan_, *this, communicator_.rank());
  return load_weights();
}

Status RunState::make_executor(const ExecutorOptions& options) {
  loss_weight_ = reinterpret_cast<float*>(memory_.kept.data() + plan_.kept.bytes());
  OFSDP_RETURN_IF_ERROR(make_optimizer(units_));
  for (const Unit& unit : plan_.plan.units) optimizer_->round(unit.id);
  executor_ = std::make_unique<CpuEngine>(plan_.plan, units_, *optimizer_, communicator_,
                                          loss_weight_, options);
  bind_programs(memory_.bases());
  return {};
}

BoundProgram& RunState::program(const ProgramKey& key) {
  const auto it = programs_.find(key);
  if (it != programs_.end()) return it->second;
  for (auto& [other, program] : programs_) {
    ProgramKey same = other;
    same.batch = key.batch;
    if (key.batch == 0 && same == key) return program;
  }
  OFSDP_CHECK(false, "a micro-batch of {} samples was not planned", key.batch);
}

// Weights, and optimizer states that the source has.
Status RunState::load_weights() {
  for (const Unit& unit : plan_.plan.units) {
    const UnitState& state = units_[static_cast<size_t>(unit.id)];
    for (const UnitParam& p : unit.params) {
      const Overlap part = overlap(p, state.owned_begin, state.owned_begin + state.owned_numel);
      if (part.count <= 0) continue;
      const Parameter& parameter = setup_.graph.parameters[static_cast<size_t>(p.parameter)];
      const auto& source = setup_.file.initializers()[static_cast<size_t>(parameter.initializer)];
      OFSDP_RETURN_IF_ERROR(
          setup_.file.read(source, part.in_parameter,
                           {state.owned + part.in_span, static_cast<size_t>(part.count)}));
      for (size_t k = 0; k < state.optimizer.size(); ++k) {
        OFSDP_RETURN_IF_ERROR(setup_.source->load_state(
            parameter, k, part.in_parameter,
            {state.optimizer[k] + part.in_span, static_cast<size_t>(part.count)}));
      }
    }
  }
  return {};
}

Status RunState::make_optimizer(const std::vector<UnitState>& units) {
  if (const UpdateRules* rules = setup_.source->updates()) {
    OFSDP_ASSIGN_OR_RETURN(update_program_, UpdateProgram::make(*rules));
  }
  optimizer_ = std::make_unique<OptimizerStep>(*plan_.optimizer, plan_.settings, plan_.plan, units,
                                               plan_.decays, update_program_.get(), plan_.rules);
  return {};
}

Status RunState::load_kept() {
  for (const KeptPlan::Entry& entry : plan_.kept.entries()) {
    std::byte* target = memory_.kept.data() + entry.offset;
    if (entry.constant != nullptr) {
      if (!entry.constant->bytes.empty()) {
        std::memcpy(target, entry.constant->bytes.data(), entry.constant->bytes.size());
      }
      continue;
    }
    OFSDP_RETURN_IF_ERROR(
        load_converted(entry.parameter, {0, entry.desc.numel()}, entry.desc.dtype, target));
  }
  return {};
}

// Of a unit's frozen parameters the elements that this rank has of the flat array.
Status RunState::load_frozen() {
  for (const Unit& unit : plan_.plan.units) {
    const Span mine = plan_.plan.owned_frozen(unit, communicator_.rank());
    std::byte* const base = units_[static_cast<size_t>(unit.id)].frozen;
    for (const UnitParam& p : unit.frozen) {
      const Overlap part = overlap(p, mine.begin, mine.begin + mine.numel);
      if (part.count <= 0) continue;
      const DType dtype = plan_.plan.param_dtype;
      OFSDP_RETURN_IF_ERROR(
          load_converted(p.parameter, {part.in_parameter, part.count}, dtype,
                         base + static_cast<size_t>(part.in_span) * dtype_size(dtype)));
    }
  }
  return {};
}

// In pieces, so that nothing is held twice.
Status RunState::load_converted(int parameter, const Span& elements, DType dtype,
                                std::byte* target) const {
  const Parameter& p = setup_.graph.parameters[static_cast<size_t>(parameter)];
  const auto& source = setup_.file.initializers()[static_cast<size_t>(p.initializer)];
  if (dtype == DType::kFloat32) {
    return setup_.file.read(
        source, elements.begin,
        {reinterpret_cast<float*>(target), static_cast<size_t>(elements.numel)});
  }
  std::array<float, 8192> piece;
  for (int64_t done = 0; done < elements.numel; done += static_cast<int64_t>(piece.size())) {
    const auto count = std::min(piece.size(), static_cast<size_t>(elements.numel - done));
    OFSDP_RETURN_IF_ERROR(setup_.file.read(source, elements.begin + done, {piece.data(), count}));
    narrow(piece.data(), dtype, target + static_cast<size_t>(done) * dtype_size(dtype),
           static_cast<int64_t>(count));
  }
  return {};
}

void RunState::bind_programs(const MemoryBases& bases) {
  const BindingContext context{lowering(plan_, communicator_.rank()), bases, offloaded_.data(),
                               loss_weight_};
  for (const auto& [key, program] : plan_.programs) programs_.emplace(key, bind(program, context));
}

float* RunState::held(int unit, int state) {
  const UnitState& held = units_[static_cast<size_t>(unit)];
  return state < 0 ? held.owned : held.optimizer[static_cast<size_t>(state)];
}

std::span<float> RunState::kept(const KeptPlan::Entry& entry) {
  return {reinterpret_cast<float*>(memory_.kept.data() + entry.offset),
          static_cast<size_t>(entry.desc.numel())};
}

}  // namespace ofsdp::runtime
