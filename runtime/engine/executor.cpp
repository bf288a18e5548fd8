#include "runtime/engine/executor.h"

namespace ofsdp::runtime {

Status Engine::absent(const Operation& op) {
  OFSDP_CHECK(false, "{}: not an operation of this engine", text(op));
  return {};
}

Status execute(Engine& engine, const Operation& op) {
  switch (op.kind) {
#define OPERATION(kind, engine_method, cost, traffic, description) \
  case OpKind::k##kind:                                            \
    return engine.engine_method(op);
#define HOST_OPERATION(kind, description) \
  case OpKind::k##kind:                   \
    break;
#include "runtime/compile/program/steps.inc"
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
