#include "runtime/engine/executor.h"

namespace ofsdp::runtime {

Status execute(Engine& engine, const Operation& op) {
  switch (op.kind) {
    case OpKind::kRun:
      return engine.run_node(op);
    case OpKind::kUnshard:
      return engine.unshard(op);
    case OpKind::kAwait:
      return engine.await(op);
    case OpKind::kClear:
      return engine.clear(op);
    case OpKind::kConvert:
      return engine.convert(op);
    case OpKind::kAdd:
      return engine.add(op);
    case OpKind::kPost:
      return engine.post(op);
    case OpKind::kReduce:
      return engine.reduce(op);
    case OpKind::kAllReduce:
      return engine.all_reduce(op);
    case OpKind::kCheckLoss:
      return engine.check_loss(op);
    case OpKind::kBuffer:
      return engine.buffer(op);
    case OpKind::kClip:
      return engine.clip(op);
    case OpKind::kUpdate:
      return engine.update(op);
    case OpKind::kTrust:
      return engine.trust(op);
    case OpKind::kApply:
      return engine.apply(op);
    case OpKind::kSums:
      return engine.sums(op);
    case OpKind::kFactors:
      return engine.factors(op);
    case OpKind::kOrthogonalize:
      return engine.orthogonalize(op);
    case OpKind::kMeet:
      return engine.meet(op);
    case OpKind::kCopyUp:
      return engine.copy_up(op);
    case OpKind::kCopyDown:
      return engine.copy_down(op);
    case OpKind::kSignal:
      return engine.signal(op);
    case OpKind::kPlaceRows:
      return engine.place_rows(op);
    case OpKind::kJoinRows:
      return engine.join_rows(op);
    case OpKind::kWatch:
      return engine.watch(op);
    case OpKind::kHostUpdate:
      break;  // of LoweredProgram::host
  }
  return {};
}

Status execute(Engine& engine, const BoundProgram& program) {
  for (const Operation& op : program.operations) {
    if (op.begins_step) OFSDP_RETURN_IF_ERROR(engine.begin_step(op));
    OFSDP_RETURN_IF_ERROR(execute(engine, op));
    if (op.ends_step) OFSDP_RETURN_IF_ERROR(engine.end_step(op));
  }
  return {};
}

}  // namespace ofsdp::runtime
