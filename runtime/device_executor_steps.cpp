// The steps of a schedule as calls of a device, and what memory each touches. Both follow
// executor.cpp and executor_gradients.cpp.
#include <algorithm>

#include "runtime/device_executor.h"

namespace ofsdp {
namespace {

int32_t number(DType dtype) { return static_cast<int32_t>(dtype); }

std::byte* bytes_of(float* values) { return reinterpret_cast<std::byte*>(values); }

bool communicates_on_device(StepKind kind) {
  switch (kind) {
    case StepKind::kGather:
    case StepKind::kReduce:
    case StepKind::kReduceUpdate:
    case StepKind::kAllReduce:
    case StepKind::kClip:
    case StepKind::kUpdate:
      return true;
    default:
      return false;
  }
}

}  // namespace

StreamOf DeviceExecutor::stream_of(const BoundProgram& program, const BoundStep& step) const {
  if (offload_ != nullptr && lands(context_.plan, context_.offsets.offload, program.plan->options,
                                   {step.kind, step.index})) {
    return StreamOf::kDownload;
  }
  const bool agrees = step.kind == StepKind::kCheckLoss && ranks_->several();
  return agrees || communicates_on_device(step.kind) ? StreamOf::kCommunication
                                                     : StreamOf::kCompute;
}

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
    case StepKind::kApply:
      break;
  }
  OFSDP_CHECK(false, "a step of an optimizer that the device does not have");
}

Status DeviceExecutor::run_node(const BoundProgram& program, const BoundRun& run) {
  step_.node = static_cast<uint64_t>(&run - program.runs.data()) + 1;
  Status status = run.kernel->run({run.inputs, run.outputs, run.workspace, &step_});
  if (status.ok()) return status;
  return std::move(status).with_prefix(fmt::format("{}, step {}, rank {}",
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
  OFSDP_RETURN_IF_ERROR(
      part(state.owned, context_.plan.rest_dtype(), step.slot, state.owned_numel));
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
      program.plan->options.first_micro || context_.plan.shards_gradients(context_.plan.units[u]);
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
  const DType dtype = context_.plan.slot_dtype(of);
  const bool more = !options.first_micro && context_.plan.shards_gradients(of);
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
  ofsdp_reduce reduce =
      reduction(unit, gradient, options.last_micro && !context_.plan.sums_copies(of));
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

// One call for each stretch of parameters with the same weight decay.
Status DeviceExecutor::update(int unit, const ofsdp_gradient& gradient, bool scaled) {
  const auto u = static_cast<size_t>(unit);
  const UnitState& state = context_.units[u];
  const size_t width = dtype_size(static_cast<DType>(gradient.dtype));
  int64_t at = 0;
  for (const OptimizerStep::Segment& segment : context_.optimizer.segments()[u]) {
    if (segment.end <= at) continue;
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

std::vector<StepAccess> DeviceExecutor::accesses(const BoundProgram& program) const {
  std::vector<StepAccess> list;
  for (const BoundStep& step : program.steps) list.push_back(access(program, step));
  return list;
}

namespace {

// gcc 12 takes an address inside the device's block, which it saw made of null, for no memory.
#pragma GCC diagnostic ignored "-Wstringop-overflow"

class Touches {
 public:
  Touches() { list_.reserve(8); }
  void read(const void* data, size_t bytes) { add(data, bytes, false); }
  void write(const void* data, size_t bytes) { add(data, bytes, true); }
  void add(const void* data, size_t bytes, bool writes) {
    if (data == nullptr || bytes == 0) return;
    list_.push_back({static_cast<const std::byte*>(data), bytes, writes});
  }
  std::vector<MemoryAccess> take() { return std::move(list_); }

 private:
  std::vector<MemoryAccess> list_;
};

std::vector<MemoryAccess> unit_touches(const DeviceContext& context, const BoundProgram& program,
                                       const BoundStep& step, bool several) {
  const auto u = static_cast<size_t>(step.index);
  const Unit& unit = context.plan.units[u];
  const UnitState& state = context.units[u];
  const auto numel = static_cast<size_t>(unit.padded_numel);
  const auto owned = static_cast<size_t>(state.owned_numel) * sizeof(float);
  const size_t width = dtype_size(context.plan.param_dtype);
  const size_t slot = numel * dtype_size(context.plan.slot_dtype(unit));
  std::byte* const own = program.accumulate[u];
  Touches touches;
  switch (step.kind) {
    case StepKind::kGather:
      touches.read(state.owned, owned);
      touches.add(step.slot, (numel + static_cast<size_t>(unit.frozen_padded_numel)) * width,
                  several || bytes_of(state.owned) != step.slot);
      break;
    case StepKind::kAcquire:
      touches.write(own != nullptr ? own : state.slot, own != nullptr ? numel * width : slot);
      break;
    case StepKind::kAccumulate:
      touches.read(own, numel * width);
      touches.write(state.slot, slot);
      break;
    default:
      touches.add(state.slot, slot, several || step.kind == StepKind::kAllReduce);
      touches.write(state.gradient, owned);
      if (step.kind != StepKind::kReduceUpdate && step.kind != StepKind::kUpdate) break;
      touches.write(state.owned, owned);
      for (float* values : state.optimizer) touches.write(values, owned);
  }
  return touches.take();
}

}  // namespace

// Inputs have no address yet; only uploads write them. What lies in the run's state is used by one
// stream alone, or is written before the other forks; the loss, `stop`, before what reads it: on the
// compute stream, or with several ranks on that of the updates.
StepAccess DeviceExecutor::access(const BoundProgram& program, const BoundStep& step) const {
  Touches touches;
  switch (step.kind) {
    case StepKind::kFree:
    case StepKind::kPost:
    case StepKind::kPostShard:
      break;
    case StepKind::kRun: {
      const BoundRun& run = program.runs[static_cast<size_t>(step.index)];
      for (const TensorView& view : run.inputs) touches.read(view.data, view.desc.bytes());
      for (const TensorView& view : run.outputs) touches.write(view.data, view.desc.bytes());
      touches.write(run.workspace, run.kernel->workspace_bytes());
      break;
    }
    case StepKind::kCheckLoss:
      touches.read(program.loss, sizeof(float));
      touches.write(context_.memory.io() + context_.io.state, 1);
      break;
    case StepKind::kCarry:
      touches.read(step.source, step.bytes);
      touches.write(step.slot, step.bytes);
      break;
    case StepKind::kClip:
      touches.write(context_.memory.io() + context_.io.state, 1);
      break;
    default:
      if (step.kind == StepKind::kUpdate && waits_for_decision(program)) break;
      return {stream_of(program, step), unit_touches(context_, program, step, ranks_->several())};
  }
  return {stream_of(program, step), touches.take()};
}

}  // namespace ofsdp
