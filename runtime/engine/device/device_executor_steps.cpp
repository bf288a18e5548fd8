// The steps of a schedule as calls of a device, and what memory each touches. Both follow
// executor.cpp and executor_gradients.cpp.
#include <algorithm>

#include "runtime/engine/device/device_executor.h"

namespace ofsdp::runtime {

Status DeviceExecutor::execute(BoundProgram& program, const BoundStep& step) {
  const auto u = static_cast<size_t>(step.index);
  switch (step.kind) {
    case StepKind::kRun:
      return empty_ ? Status{} : run_node(program, program.runs[u]);
    case StepKind::kGather:
      return gather(step);
    case StepKind::kCheckLoss:
      return check_loss(program);
    case StepKind::kCarry:
      return empty_ ? Status{} : carry(step);
    case StepKind::kAcquire:
      return acquire(program, step.index);
    case StepKind::kAccumulate:
      return accumulate(program, step.index);
    case StepKind::kReduce:
    case StepKind::kReduceUpdate:
      return reduce(program, step.index, step.kind == StepKind::kReduceUpdate);
    case StepKind::kAllReduce:
      return all_reduce(program, step.index);
    case StepKind::kClip:
      return clip();
    case StepKind::kUpdate:
      if (offload_ != nullptr) {
        return send_update(program, step.index, context_.units[u].gradient);
      }
      return update(
          step.index,
          {context_.units[u].gradient, number(DType::kFloat32), number(DType::kFloat32), nullptr},
          scales_gradients());
    case StepKind::kFree:
    case StepKind::kPost:
    case StepKind::kPostShard:
      return {};
    case StepKind::kTrust:
      return step_lengths_ == nullptr ? Status{} : step_lengths_->agree(step_.numbers);
    case StepKind::kApply:
      return step_lengths_ == nullptr ? Status{} : step_lengths_->apply(step.index, step_.numbers);
  }
  return {};
}

// With an offload the host takes the steps.
void DeviceExecutor::make_step_lengths() {
  std::byte* const io = context_.memory.io();
  step_lengths_ = DeviceStepLengths::make(
      {device_, context_.plan, context_.units, context_.optimizer, optimizer_.get(),
       reinterpret_cast<double*>(io + context_.io.squares),
       reinterpret_cast<double*>(io + context_.io.partials), run_state()},
      *ranks_);
}

Status DeviceExecutor::run_node(const BoundProgram& program, const BoundRun& run) {
  step_.node = static_cast<uint64_t>(&run - program.runs.data()) + 1;
  Status status = run.kernel->run({run.inputs, run.outputs, run.workspace, &step_});
  if (status.ok()) return status;
  return std::move(status).with_prefix(format_text("{}, step {}, rank {}",
                                                   program.plan->graph.describe(*run.node),
                                                   numbers_.step, ranks_->rank()));
}

// No rank updates behind a loss that is NaN on one of them.
Status DeviceExecutor::check_loss(const BoundProgram& program) {
  const bool several = ranks_->several();
  if (!empty_) {
    ofsdp_stream* const stream = several ? device_.communication() : device_.compute();
    OFSDP_RETURN_IF_ERROR(device_.call("the loss", table_.note_loss, stream, run_state(),
                                       program.loss, program.plan->options.training ? 1 : 0));
  }
  return several ? ranks_->agree_to_stop(&run_state()->stop) : Status{};
}

Status DeviceExecutor::clip() {
  OFSDP_RETURN_IF_ERROR(sum_norm());
  OFSDP_RETURN_IF_ERROR(device_.call("the norm", table_.clip, device_.communication(), run_state(),
                                     options_.clip_norm, options_.scale_loss ? 1 : 0));
  if (offload_ == nullptr) return {};
  OFSDP_RETURN_IF_ERROR(offload_->decide(run_state()));
  return offload_->signal(-1);
}

// Each rank converts its part to where the gathered one lies, or has it sent there.
Status DeviceExecutor::gather(const BoundStep& step) {
  const auto u = static_cast<size_t>(step.index);
  const UnitState& state = context_.units[u];
  const Unit& unit = context_.plan.units[u];
  const DType dtype = context_.plan.param_dtype;
  const RankGroup shards = context_.plan.shard_group(unit, ranks_->rank());
  const auto place = static_cast<size_t>(shards.index_of(ranks_->rank()));
  const int64_t frozen = unit.frozen_padded_numel / shards.count;
  std::byte* behind = step.slot + static_cast<size_t>(unit.padded_numel) * dtype_size(dtype);
  const auto own = [&](std::byte* all, int64_t count) {
    return all + place * static_cast<size_t>(count) * dtype_size(dtype);
  };
  const bool fetches = offload_ != nullptr && offload_->fetches();
  if (fetches) {
    OFSDP_RETURN_IF_ERROR(
        offload_->fetch(step.index, own(step.slot, state.owned_numel), own(behind, frozen)));
  }
  const auto part = [&](const void* src, DType from, std::byte* all, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * dtype_size(dtype);
    std::byte* const dst = own(all, count);
    if (src != dst && count > 0 && !fetches) {
      OFSDP_RETURN_IF_ERROR(device_.call("all-gather", table_.convert, device_.communication(), src,
                                         number(from), static_cast<void*>(dst), number(dtype),
                                         count));
    }
    return ranks_->all_gather(step.index, shards, all, bytes);
  };
  OFSDP_RETURN_IF_ERROR(part(state.owned, context_.plan.rest_dtype, step.slot, state.owned_numel));
  return part(state.frozen, dtype, behind, frozen);
}

Status DeviceExecutor::carry(const BoundStep& step) {
  OFSDP_RETURN_IF_ERROR(device_.call("a running statistic", table_.copy, device_.compute(),
                                     static_cast<void*>(step.slot),
                                     static_cast<const void*>(step.source), step.bytes));
  if (options_.buffer_dtype == DType::kFloat32) return {};
  return device_.call("a running statistic", table_.round, device_.compute(),
                      reinterpret_cast<float*>(step.slot), number(options_.buffer_dtype),
                      static_cast<int64_t>(step.bytes / sizeof(float)));
}

Status DeviceExecutor::acquire(const BoundProgram& program, int unit) {
  const auto u = static_cast<size_t>(unit);
  const size_t width = dtype_size(context_.plan.param_dtype);
  std::byte* const own = program.accumulate[u];
  std::byte* const target = own != nullptr ? own : context_.units[u].slot;
  const auto clear = [&](int64_t begin, int64_t end) {
    return device_.call("a gradient slot", table_.clear, device_.compute(),
                        static_cast<void*>(target + static_cast<size_t>(begin) * width),
                        static_cast<size_t>(end - begin) * width);
  };
  if (empty_) return clear(0, context_.plan.units[u].padded_numel);
  for (const auto& [begin, end] : gaps_[u]) {
    if (end > begin) OFSDP_RETURN_IF_ERROR(clear(begin, end));
  }
  return {};
}

Status DeviceExecutor::accumulate(const BoundProgram& program, int unit) {
  const auto u = static_cast<size_t>(unit);
  const void* src = program.accumulate[u];
  const int32_t from = number(context_.plan.param_dtype);
  const int64_t numel = context_.plan.units[u].padded_numel;
  std::byte* const slot = context_.units[u].slot;
  const bool first =
      program.plan->options.first_micro || context_.plan.units[u].plan.shards_gradients;
  if (first) {
    return device_.call("accumulation", table_.convert, device_.compute(), src, from,
                        static_cast<void*>(slot), number(DType::kFloat32), numel);
  }
  return device_.call("accumulation", table_.add, device_.compute(), src, from,
                      reinterpret_cast<float*>(slot), numel);
}

ofsdp_reduce DeviceExecutor::reduction(int unit, const ofsdp_gradient& gradient, bool norm) const {
  const auto u = static_cast<size_t>(unit);
  const UnitState& state = context_.units[u];
  ofsdp_reduce reduce{};
  reduce.gradient = gradient;
  reduce.count = state.owned_numel;
  reduce.norm_first = represented_[u].begin - state.owned_begin;
  reduce.norm_count = norm ? represented_[u].numel : 0;
  reduce.partials = reinterpret_cast<double*>(context_.memory.io() + context_.io.partials);
  reduce.state = run_state();
  return reduce;
}

Status DeviceExecutor::reduce(const BoundProgram& program, int unit, bool update_now) {
  if (context_.plan.across_ranks) return reduce_slices(program, unit, update_now);
  const auto u = static_cast<size_t>(unit);
  const Unit& of = context_.plan.units[u];
  const UnitState& state = context_.units[u];
  const CompileOptions& options = program.plan->options;
  const DType dtype = of.plan.gradient_dtype;
  const bool more = !options.first_micro && of.plan.shards_gradients;
  OFSDP_RETURN_IF_ERROR(ranks_->reduce_scatter(
      unit, context_.plan.summing_group(of, ranks_->rank()), state.slot, dtype, state.owned_numel));
  float* kept = state.gradient;
  bool keeps = !update_now;
  if (offload_ != nullptr) {
    keeps = offload_->of(unit).summed;
    if (offload_->of(unit).passes_slots) {
      OFSDP_ASSIGN_OR_RETURN(kept, offload_->take_slot(unit, more));
    }
  }
  const ofsdp_gradient gradient{
      state.slot + static_cast<size_t>(state.owned_begin) * dtype_size(dtype), number(dtype),
      number(context_.plan.reduce_dtype), more ? kept : nullptr};
  ofsdp_reduce reduce = reduction(unit, gradient, options.last_micro && !of.plan.sums_copies);
  if (keeps) reduce.dst = kept;
  OFSDP_RETURN_IF_ERROR(device_.call("reduce-scatter", table_.reduce, device_.communication(),
                                     static_cast<const ofsdp_reduce*>(&reduce)));
  if (offload_ != nullptr) {
    return send_reduced(program, unit, keeps ? kept : gradient.src, update_now);
  }
  return update_now ? update(unit, gradient, false) : Status{};
}

Status DeviceExecutor::all_reduce(const BoundProgram& program, int unit) {
  const auto u = static_cast<size_t>(unit);
  const UnitState& state = context_.units[u];
  const DType rounded = context_.plan.reduce_dtype;
  const RankGroup copies = context_.plan.replica_group(context_.plan.units[u], ranks_->rank());
  OFSDP_RETURN_IF_ERROR(
      ranks_->all_reduce(unit, copies, state.gradient, DType::kFloat32, state.owned_numel));
  if (rounded != DType::kFloat32) {
    OFSDP_RETURN_IF_ERROR(device_.call("all-reduce", table_.round, device_.communication(),
                                       state.gradient, number(rounded), state.owned_numel));
  }
  const ofsdp_gradient gradient{state.gradient, number(DType::kFloat32), number(DType::kFloat32),
                                nullptr};
  const ofsdp_reduce reduce = reduction(unit, gradient, true);
  OFSDP_RETURN_IF_ERROR(
      device_.call("all-reduce", table_.reduce, device_.communication(), &reduce));
  return waits_for_decision(program) ? offload_->land(unit, state.gradient) : Status{};
}

// One call for each stretch of the same rule and weight decay; where steps need norms of parameters
// it only advances the states.
Status DeviceExecutor::update(int unit, const ofsdp_gradient& gradient, bool scaled) {
  const auto u = static_cast<size_t>(unit);
  const UnitState& state = context_.units[u];
  const size_t width = dtype_size(static_cast<DType>(gradient.dtype));
  const auto& segments = context_.optimizer.segments()[u];
  int64_t at = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const OptimizerStep::Segment& segment = segments[s];
    const bool goes_on = s + 1 < segments.size() && segments[s + 1].rule == segment.rule &&
                         segments[s + 1].weight_decay == segment.weight_decay;
    if (segment.end <= at || goes_on) continue;
    ofsdp_device_update update{};
    update.gradient = gradient;
    update.gradient.src =
        static_cast<const std::byte*>(gradient.src) + static_cast<size_t>(at) * width;
    if (gradient.onto != nullptr) update.gradient.onto = gradient.onto + at;
    update.param = state.owned + at;
    for (size_t i = 0; i < state.optimizer.size(); ++i) update.states[i] = state.optimizer[i] + at;
    update.count = segment.end - at;
    update.weight_decay = segment.weight_decay;
    update.scaled = scaled ? 1 : 0;
    update.state = run_state();
    update.numbers = step_.numbers;
    OFSDP_RETURN_IF_ERROR(apply(segment.rule, update));
    at = segment.end;
  }
  return {};
}

Status DeviceExecutor::apply(int rule, const ofsdp_device_update& update) {
  if (context_.rules != nullptr) return context_.rules->update(rule, update, step_, scalars_);
  return device_.call("the optimizer", table_.update, device_.communication(), optimizer_.get(),
                      &update);
}

}  // namespace ofsdp::runtime
