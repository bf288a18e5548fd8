#include "runtime/report/step_traffic.h"

namespace ofsdp::runtime {
namespace {

size_t bytes_of(const Span& elements, const Operand& of) {
  return of.area == Area::kNone ? 0 : static_cast<size_t>(elements.numel) * dtype_size(of.dtype);
}

// Inputs and outputs; a workspace stands after them.
StepTraffic of_node(const Operation& op, const Node& node) {
  StepTraffic sum;
  for (size_t i = 0; i < node.inputs.size() + node.outputs.size(); ++i) {
    const Operand& operand = op.operands[i];
    if (operand.area == Area::kNone) continue;
    (operand.writes ? sum.written : sum.read) += operand.bytes();
  }
  return sum;
}

// The gradient, once more for its norm, and what the optimizer has after slot and gradient.
StepTraffic of_update(const Operation& op, bool updates) {
  StepTraffic sum;
  const size_t gradient = bytes_of(op.part, op.src);
  if (op.stages.norm) sum.read += gradient;
  if (op.dst.area != Area::kNone || updates) sum.read += gradient;
  if (op.dst.area != Area::kNone) sum.written += op.dst.bytes();
  for (size_t i = 2; updates && i < op.operands.size(); ++i) {
    const Operand& operand = op.operands[i];
    if (operand.dtype == DType::kFloat32) sum.read += operand.bytes();  // else it is a rounded copy
    sum.written += operand.bytes();
  }
  return sum;
}

// The parameters, the moments in which their steps are found, and the parameters anew.
StepTraffic of_steps(const Operation& op) {
  StepTraffic sum;
  for (const Operand& operand : op.operands) {
    sum.read += operand.bytes();
    if (operand.writes) sum.written += operand.bytes();
  }
  return sum;
}

StepTraffic traffic_of(const Operation& op, const ProgramPlan& program) {
  switch (op.kind) {
    case OpKind::kRun:
      return of_node(op, program.graph.nodes[static_cast<size_t>(op.node)]);
    case OpKind::kPlaceRows:
      return {op.operands[0].bytes(), op.dst.bytes()};
    case OpKind::kUnshard:
      if (!op.converts) return {};
      return {bytes_of(op.part, op.src), bytes_of(op.part, op.dst)};
    case OpKind::kConvert:
    case OpKind::kBuffer:
      return {op.src.bytes(), op.dst.bytes()};
    case OpKind::kAdd:
      return {op.src.bytes() + op.dst.bytes(), op.dst.bytes()};
    case OpKind::kReduce:
    case OpKind::kAllReduce:
      return of_update(op, op.stages.update);
    case OpKind::kUpdate:
      return of_update(op, true);
    case OpKind::kTrust:
    case OpKind::kApply:
      return of_steps(op);
    default:
      return {};
  }
}

}  // namespace

std::vector<StepTraffic> step_traffic(const LoweredProgram& lowered, const ProgramPlan& program) {
  std::vector<StepTraffic> steps(program.schedule.steps.size());
  for (const Operation& op : lowered.operations) {
    StepTraffic& step = steps[static_cast<size_t>(op.step)];
    const StepTraffic more = traffic_of(op, program);
    step.read += more.read;
    step.written += more.written;
  }
  return steps;
}

}  // namespace ofsdp::runtime
