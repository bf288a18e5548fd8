#include "runtime/run_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "importer/state_places.h"
#include "kernels/cpu/float_width.h"
#include "kernels/cpu/parallel.h"
#include "runtime/artifact_state.h"
#include "runtime/checkpoint_state.h"
#include "runtime/data/loader.h"
#include "runtime/shared_text.h"

namespace ofsdp {
namespace {

// The part of a parameter that lies in elements [begin, end) of its unit.
struct Overlap {
  int64_t in_parameter;  // first element
  int64_t in_span;       // the same, counted from `begin`
  int64_t count;         // <= 0: none
};

Overlap overlap(const UnitParam& p, int64_t begin, int64_t end) {
  const int64_t first = std::max(p.offset, begin);
  const int64_t last = std::min(p.offset + p.numel, end);
  return {first - p.offset, first - begin, last - first};
}

}  // namespace

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
  OFSDP_RETURN_IF_ERROR(plan.device == nullptr ? state->make_executor(options)
                                               : state->make_device_executor(options));
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
  OFSDP_RETURN_IF_ERROR(load_weights());
  return setup_.artifacts == nullptr ? Status{}
                                     : load_moments(plan_, setup_, *this, communicator_.rank());
}

Status RunState::make_executor(const ExecutorOptions& options) {
  loss_weight_ = reinterpret_cast<float*>(memory_.kept.data() + plan_.kept.bytes());
  OFSDP_RETURN_IF_ERROR(make_optimizer(units_));
  for (const Unit& unit : plan_.plan.units) optimizer_->round(unit.id);
  ExecutorOptions traced = options;
  if (plan_.memory.trace > 0) {
    trace_ =
        std::make_unique<TraceRecorder>(std::span(memory_.trace.data(), memory_.trace.bytes()));
    traced.trace = trace_.get();
  }
  executor_ = std::make_unique<Executor>(plan_.plan, plan_.memory, memory_, units_, plan_.slots,
                                         *optimizer_, communicator_, loss_weight_, traced);
  bind_programs(memory_.bases(), units_);
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
    }
    if (setup_.rules) OFSDP_RETURN_IF_ERROR(load_states(unit));
  }
  return {};
}

// Optimizer state that the file has: of a training_info.
Status RunState::load_states(const Unit& unit) {
  const UnitState& state = units_[static_cast<size_t>(unit.id)];
  for (const UnitParam& p : unit.params) {
    const Overlap part = overlap(p, state.owned_begin, state.owned_begin + state.owned_numel);
    if (part.count <= 0) continue;
    const UpdateRule& rule =
        setup_.rules->rules[static_cast<size_t>(plan_.rules[static_cast<size_t>(p.parameter)])];
    for (size_t i = 0; i < rule.states.size(); ++i) {
      OFSDP_ASSIGN_OR_RETURN(const StatePlace place, find_state(setup_.file, rule.states[i]));
      OFSDP_RETURN_IF_ERROR(
          setup_.file.read(state_source(setup_.file, place), part.in_parameter,
                           {state.optimizer[i] + part.in_span, static_cast<size_t>(part.count)}));
    }
  }
  return {};
}

Status RunState::make_optimizer(const std::vector<UnitState>& units) {
  if (setup_.rules) {
    OFSDP_ASSIGN_OR_RETURN(update_program_, UpdateProgram::make(*setup_.rules));
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

void RunState::bind_programs(const MemoryBases& bases, const std::vector<UnitState>& units) {
  const BindingContext context{plan_.plan, plan_.memory, bases, units, plan_.kept, loss_weight_};
  for (const auto& [key, program] : plan_.programs) programs_.emplace(key, bind(program, context));
}

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

float* RunState::held(int unit, int state) {
  const UnitState& held = units_[static_cast<size_t>(unit)];
  return state < 0 ? held.owned : held.optimizer[static_cast<size_t>(state)];
}

std::span<float> RunState::kept(const KeptPlan::Entry& entry) {
  return {reinterpret_cast<float*>(memory_.kept.data() + entry.offset),
          static_cast<size_t>(entry.desc.numel())};
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

}  // namespace ofsdp
