#include "runtime/engine/executor.h"

#include <cmath>
#include <cstring>

#include "fsdp/comm/rank_sum.h"
#include "runtime/engine/nan_search.h"

namespace ofsdp::runtime {

Executor::Executor(const Plan& plan, const RankMemoryPlan& offsets, const RankMemory& memory,
                   const std::vector<UnitState>& units, const GradientSlots& slots,
                   OptimizerStep& optimizer, Communicator& communicator, float* loss_weight,
                   const ExecutorOptions& options)
    : plan_(plan),
      offsets_(offsets),
      memory_(memory),
      units_(units),
      slots_(slots),
      optimizer_(optimizer),
      communicator_(communicator),
      loss_weight_(loss_weight),
      options_(options) {
  for (const Unit& unit : plan.units) {
    const int rank = communicator.rank();
    gaps_.push_back(gaps(unit));
    groups_.push_back({plan.shard_group(unit, rank), plan.replica_group(unit, rank),
                       plan.summing_group(unit, rank), plan.represented(unit, rank)});
  }
  if (optimizer.needs_norms()) step_lengths_.emplace(plan, units, communicator.rank());
  context_.seed = options.seed;
  exposed_ = ExposedTime(plan.units.size());
}

void Executor::begin_update(const UpdateNumbers& numbers) {
  numbers_ = numbers;
  context_.step = numbers.step - 1;
  numbers_.optimizer_step = options_.steps_done + numbers.step - loss_scale_.skipped_updates;
  scale_used_ = options_.scale_loss ? loss_scale_.scale : 1;
  skip_update_ = false;
  squared_norm_ = 0;
  exact_squares_.clear();
  global_norm_ = 0;
  exposed_.begin_update();
  outcome_ = {.step = numbers.step, .optimizer_step = numbers_.optimizer_step};
  outcome_given_ = false;
  update_began_ = nanoseconds_now();
}

Result<std::optional<UpdateOutcome>> Executor::outcome(bool) {
  if (outcome_given_) return std::optional<UpdateOutcome>();
  outcome_given_ = true;
  outcome_.squared_norm = squared_norm();
  return std::optional(outcome_);
}

void Executor::end_update(int64_t exchange_began) {
  const int64_t now = nanoseconds_now();
  exposed_.add(-1, now - exchange_began);
  exposed_.end_update();
  if (options_.trace == nullptr) return;
  options_.trace->add(
      {nullptr, exchange_began, now, kTraceExchange, TraceRow::kOfStep, numbers_.step});
  options_.trace->add(
      {nullptr, update_began_, now, kTraceUpdate, TraceRow::kOfStep, numbers_.step});
}

Status Executor::run(BoundProgram& program, const MicroBatch& batch) {
  empty_ = batch.sample_index.empty();
  result_ = {};
  *loss_weight_ = static_cast<float>(batch.loss_weight) * static_cast<float>(scale_used_);
  context_.sample_index = batch.sample_index;
  for (const InputPatch& patch : program.inputs) {
    program.runs[static_cast<size_t>(patch.run)].inputs[static_cast<size_t>(patch.operand)].data =
        batch.columns[static_cast<size_t>(patch.column)];
  }
  if (options_.trace != nullptr) {
    OFSDP_RETURN_IF_ERROR(run_traced(program));
  } else {
    for (const BoundStep& step : program.steps) OFSDP_RETURN_IF_ERROR(execute(program, step));
  }
  if (!program.plan->options.training && !empty_) result_.loss = *program.loss;
  if (program.matches != nullptr && !empty_) {
    result_.right = program.matches[0];
    result_.kept = program.matches[1];
  }
  outcome_.loss += batch.loss_weight * static_cast<double>(result_.loss);
  outcome_.samples += static_cast<double>(batch.sample_index.size());
  return {};
}

Status Executor::run_traced(BoundProgram& program) {
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const int64_t began = nanoseconds_now();
    OFSDP_RETURN_IF_ERROR(execute(program, program.steps[s]));
    options_.trace->add({program.plan, began, nanoseconds_now(), static_cast<int32_t>(s),
                         TraceRow::kOfStep, numbers_.step});
  }
  return {};
}

Status Executor::execute(BoundProgram& program, const BoundStep& step) {
  switch (step.kind) {
    case StepKind::kRun:
      return empty_ ? Status{} : run_node(program, program.runs[static_cast<size_t>(step.index)]);
    case StepKind::kGather:
      return gather(step);
    case StepKind::kFree:
      return {};
    case StepKind::kCheckLoss:
      return check_loss(program);
    case StepKind::kCarry:
      carry(step);
      return {};
    case StepKind::kAcquire:
      return acquire(program, step.index);
    case StepKind::kAccumulate:
      accumulate(program, step.index);
      return {};
    case StepKind::kPost:
      post(step.index);
      return {};
    case StepKind::kReduce:
      return reduce(program, step.index, false);
    case StepKind::kReduceUpdate:
      return reduce(program, step.index, true);
    case StepKind::kAllReduce:
      return all_reduce(step.index);
    case StepKind::kPostShard:
      communicator_.post(shard_channel(step.index), groups_[static_cast<size_t>(step.index)].copies,
                         represented_slot(step.index));
      return {};
    case StepKind::kClip:
      return clip();
    case StepKind::kUpdate:
      update(step.index);
      return {};
    case StepKind::kTrust:
      return trust();
    case StepKind::kApply:
      if (!skip_update_) optimizer_.apply(step.index, numbers_, step_lengths_->lengths());
      return {};
  }
  return {};
}

Status Executor::run_node(const BoundProgram& program, const BoundRun& run) {
  Status status = run.kernel->run({run.inputs, run.outputs, run.workspace, &context_});
  if (status.ok()) return status;
  return std::move(status).with_prefix(format_text("{}, step {}, rank {}",
                                                   program.plan->graph.describe(*run.node),
                                                   numbers_.step, communicator_.rank()));
}

Status Executor::check_loss(BoundProgram& program) {
  if (empty_) return {};
  result_.loss = *program.loss;
  return std::isnan(result_.loss) && program.plan->options.training ? blame_nan(program) : Status{};
}

Status Executor::check_evaluation(BoundProgram& program) {
  if (std::isfinite(result_.loss)) return {};
  if (std::isnan(result_.loss)) return blame_nan(program);
  return loss_fault(*program.plan, result_.loss, numbers_.step, communicator_.rank());
}

// Nothing has been updated since the micro-batch began, here or anywhere: an update needs this rank's
// Post, and evaluation ends in an exchange.
Status Executor::blame_nan(BoundProgram& program) {
  alone_ = true;  // the others go on to wait for this rank
  const auto again = [&](const BoundStep& step) { return execute(program, step); };
  const auto has_nan = [](const TensorView& view) {
    return any_nan({view.as<const float>(), static_cast<size_t>(view.desc.numel())});
  };
  OFSDP_ASSIGN_OR_RETURN(const std::string first,
                         first_nan(program, {.execute = again, .has_nan = has_nan}));
  return loss_fault(*program.plan, result_.loss, numbers_.step, communicator_.rank(), first);
}

void Executor::carry(const BoundStep& step) {
  if (empty_) return;
  std::memcpy(step.slot, step.source, step.bytes);
  round_elements(reinterpret_cast<float*>(step.slot), options_.buffer_dtype,
                 static_cast<int64_t>(step.bytes / sizeof(float)));
}

Status Executor::gather(const BoundStep& step) {
  const auto u = static_cast<size_t>(step.index);
  const UnitOffsets& offsets = offsets_.units[u];
  const CollectiveSite where = site("all-gather", step.index);
  const DType dtype = plan_.param_dtype;
  const ShardSource source{offsets.owned, offsets.owned_stride, units_[u].owned_numel};
  const ExposedTime::Stretch stretch(exposed_, step.index);
  OFSDP_RETURN_IF_ERROR(
      communicator_.all_gather(groups_[u].shards, source, step.slot, dtype, where));
  const Unit& unit = plan_.units[u];
  if (unit.frozen.empty()) return {};
  const ShardSource frozen{offsets.frozen, 0, unit.frozen_padded_numel / groups_[u].shards.count,
                           dtype};
  std::byte* behind = step.slot + static_cast<size_t>(unit.padded_numel) * dtype_size(dtype);
  return communicator_.all_gather(groups_[u].shards, frozen, behind, dtype, where);
}

}  // namespace ofsdp::runtime
