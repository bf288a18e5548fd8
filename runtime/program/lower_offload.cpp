// --cpu-offload: the copies between host and device, and the update on the host.
#include "kernels/core/device_values.h"
#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {
namespace {

Operand host_operand(size_t offset, int64_t count, DType dtype) {
  return {
      .area = Area::kHost, .offset = static_cast<int64_t>(offset), .count = count, .dtype = dtype};
}

}  // namespace

const OffloadedUnit& OffloadLowering::of(int u) const {
  return context_.memory.offload.units[static_cast<size_t>(u)];
}

PassedSlot OffloadLowering::take_slot(int u) {
  const OffloadPlan& offload = context_.memory.offload;
  const bool waits = slots_taken_ >= offload.slots;
  const int index = slots_taken_++ % offload.slots;
  const size_t offset =
      context_.memory.offload_slots + static_cast<size_t>(index) * offload.slot_bytes;
  return {.sum = {.area = Area::kState,
                  .offset = static_cast<int64_t>(offset),
                  .count = places(u).span.numel},
          .index = index,
          .awaited = waits ? index : -1};
}

void OffloadLowering::fetch_shard(int u, size_t from, const Operand& all, const Span& part) {
  if (part.numel == 0) return;
  Operation& made = add(OpKind::kCopyUp, Lane::kCommunication, u);
  made.dst = all.part(part.begin, part.numel);
  made.src = host_operand(from, part.numel, all.dtype);
}

void OffloadLowering::fetch_sum(int u, const PassedSlot& slot) {
  Operation& made = add(OpKind::kCopyUp, Lane::kCommunication, u);
  made.src = host_operand(of(u).gradient, slot.sum.count, DType::kFloat32);
  made.dst = slot.sum;
  made.slot = slot.awaited;
}

Operation& OffloadLowering::send_gradient(int u, const Operand& gradient, Lane lane, int slot) {
  Operation& made = add(OpKind::kCopyDown, lane, u);
  made.src = gradient;
  made.dst = host_operand(of(u).gradient, gradient.count, of(u).landed);
  made.slot = slot;
  return made;
}

// The host waits for the decision or, where nothing decides, for each gradient in turn.
std::vector<Operation> OffloadLowering::update_on_host() const {
  std::vector<Operation> host;
  const auto add_host = [&](OpKind kind, int unit) -> Operation& {
    Operation& made = host.emplace_back();
    made.kind = kind;
    made.unit = unit;
    return made;
  };
  if (options_.clip) add_host(OpKind::kAwait, -1);
  for (const Step& step : program_.schedule.steps) {
    if (step.kind != StepKind::kReduceUpdate && step.kind != StepKind::kUpdate) continue;
    const int u = step.index;
    if (!options_.clip) add_host(OpKind::kAwait, u);
    Operation& made = add_host(OpKind::kHostUpdate, u);
    if (plan_.offload == CpuOffload::kParams) continue;
    made.src = host_operand(of(u).rest, places(u).span.numel, plan_.rest_dtype);
    made.dst = places(u).owned.written();
  }
  if (options_.parameter_norms) add_host(OpKind::kTrust, -1);
  return host;
}

OffloadTraffic offload_traffic(const LoweredProgram& program) {
  OffloadTraffic sum;
  for (const auto* list : {&program.operations, &program.host}) {
    for (const Operation& op : *list) {
      if (op.kind == OpKind::kCopyUp || op.kind == OpKind::kHostUpdate) sum.up += op.src.bytes();
      if (op.kind == OpKind::kCopyDown) sum.down += op.dst.bytes();
    }
  }
  if (!program.host.empty()) sum.down += sizeof(ofsdp_run_state);
  return sum;
}

}  // namespace ofsdp::runtime
