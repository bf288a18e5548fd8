#include "runtime/engine/device/device_accesses.h"

#include "runtime/program/offload_plan.h"

namespace ofsdp::runtime {
namespace {

bool communicates_on_device(StepKind kind) {
  switch (kind) {
    case StepKind::kGather:
    case StepKind::kReduce:
    case StepKind::kReduceUpdate:
    case StepKind::kAllReduce:
    case StepKind::kClip:
    case StepKind::kUpdate:
    case StepKind::kTrust:
    case StepKind::kApply:
      return true;
    default:
      return false;
  }
}

Lane stream_of(const AccessContext& context, const BoundProgram& program,
                   const BoundStep& step) {
  if (context.offload.bytes > 0 &&
      lands(context.plan, context.offload, program.plan->options, {step.kind, step.index})) {
    return Lane::kDownload;
  }
  const bool agrees = step.kind == StepKind::kCheckLoss && context.several;
  return agrees || communicates_on_device(step.kind) ? Lane::kCommunication
                                                     : Lane::kCompute;
}

// gcc 12 takes an address inside the device's block, which it saw made of null, for no memory.
#pragma GCC diagnostic ignored "-Wstringop-overflow"

// Gradients land for it as they are complete, so an update waits for nothing else.
bool waits_for_decision(const AccessContext& context, const BoundProgram& program) {
  return context.offload.bytes > 0 && program.plan->options.clip;
}

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

std::vector<MemoryAccess> unit_touches(const AccessContext& context, const BoundProgram& program,
                                       const BoundStep& step) {
  const auto u = static_cast<size_t>(step.index);
  const Unit& unit = context.plan.units[u];
  const UnitState& state = context.units[u];
  const auto numel = static_cast<size_t>(unit.padded_numel);
  const auto owned = static_cast<size_t>(state.owned_numel) * sizeof(float);
  const size_t width = dtype_size(context.plan.param_dtype);
  const size_t slot = numel * dtype_size(unit.plan.gradient_dtype);
  std::byte* const own = program.accumulate[u];
  Touches touches;
  switch (step.kind) {
    case StepKind::kGather:
      touches.read(state.owned, owned);
      touches.add(step.slot, (numel + static_cast<size_t>(unit.frozen_padded_numel)) * width,
                  context.several || reinterpret_cast<std::byte*>(state.owned) != step.slot);
      break;
    case StepKind::kApply:
      touches.write(state.owned, owned);
      for (const float* values : state.optimizer) touches.read(values, owned);
      break;
    case StepKind::kAcquire:
      touches.write(own != nullptr ? own : state.slot, own != nullptr ? numel * width : slot);
      break;
    case StepKind::kAccumulate:
      touches.read(own, numel * width);
      touches.write(state.slot, slot);
      break;
    default:
      touches.add(state.slot, slot, context.several || step.kind == StepKind::kAllReduce);
      touches.write(state.gradient, owned);
      if (step.kind != StepKind::kReduceUpdate && step.kind != StepKind::kUpdate) break;
      touches.write(state.owned, owned);
      for (float* values : state.optimizer) touches.write(values, owned);
  }
  return touches.take();
}

StepAccess access(const AccessContext& context, const BoundProgram& program,
                  const BoundStep& step) {
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
      touches.write(context.state, 1);
      break;
    case StepKind::kCarry:
      touches.read(step.source, step.bytes);
      touches.write(step.slot, step.bytes);
      break;
    case StepKind::kClip:
      touches.write(context.state, 1);
      break;
    case StepKind::kTrust:
      for (size_t u = 0; context.measures && u < context.units.size(); ++u) {
        const UnitState& state = context.units[u];
        const auto owned = static_cast<size_t>(state.owned_numel) * sizeof(float);
        touches.read(state.owned, owned);
        for (const float* values : state.optimizer) touches.read(values, owned);
      }
      break;
    default:
      if (step.kind == StepKind::kUpdate && waits_for_decision(context, program)) break;
      if (step.kind == StepKind::kApply && !context.measures) break;
      return {stream_of(context, program, step), unit_touches(context, program, step)};
  }
  return {stream_of(context, program, step), touches.take()};
}

}  // namespace

std::vector<StepAccess> step_accesses(const AccessContext& context, const BoundProgram& program) {
  std::vector<StepAccess> list;
  for (const BoundStep& step : program.steps) list.push_back(access(context, program, step));
  return list;
}

}  // namespace ofsdp::runtime
