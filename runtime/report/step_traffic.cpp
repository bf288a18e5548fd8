#include "runtime/report/step_traffic.h"

namespace ofsdp::runtime {
namespace {

size_t bytes_of(const Span& elements, const Operand& of) {
  return of.area == Area::kNone ? 0 : static_cast<size_t>(elements.numel) * dtype_size(of.dtype);
}

class TrafficCounter {
 public:
  explicit TrafficCounter(const Graph& graph) : graph_(graph) {}

  StepTraffic count(const Operation& op) const {
    switch (op.kind) {
#define OPERATION(kind, engine, cost, traffic, description) \
  case OpKind::k##kind:                                     \
    return traffic(op);
#define HOST_OPERATION(kind, description) \
  case OpKind::k##kind:                   \
    break;
#include "runtime/program/steps.inc"
    }
    return {};
  }

 private:
  // --- The column `traffic` of steps.inc

  static StepTraffic none(const Operation&) { return {}; }

  // Inputs and outputs; the workspace follows them.
  StepTraffic node(const Operation& op) const {
    const Node& node = graph_.nodes[static_cast<size_t>(op.node)];
    StepTraffic sum;
    for (size_t i = 0; i < node.inputs.size() + node.outputs.size(); ++i) {
      const Operand& operand = op.operands[i];
      if (operand.area == Area::kNone) continue;
      (operand.writes ? sum.written : sum.read) += operand.bytes();
    }
    return sum;
  }

  static StepTraffic place_rows(const Operation& op) {
    return {op.operands[0].bytes(), op.dst.bytes()};
  }

  static StepTraffic unshard(const Operation& op) {
    if (!op.converts) return {};
    return {bytes_of(op.part, op.src), bytes_of(op.part, op.dst)};
  }

  static StepTraffic copy(const Operation& op) { return {op.src.bytes(), op.dst.bytes()}; }

  static StepTraffic add(const Operation& op) {
    return {op.src.bytes() + op.dst.bytes(), op.dst.bytes()};
  }

  static StepTraffic sum(const Operation& op) { return gradient(op, op.stages.update); }
  static StepTraffic update(const Operation& op) { return gradient(op, true); }

  // Parameters and states are read; what the step changes is written.
  static StepTraffic optimizer_step(const Operation& op) {
    StepTraffic sum;
    for (const Operand& operand : op.operands) {
      sum.read += operand.bytes();
      if (operand.writes) sum.written += operand.bytes();
    }
    return sum;
  }

  // Reads the gradient, twice if it has a norm. An update also reads and writes the operands after
  // slot and gradient.
  static StepTraffic gradient(const Operation& op, bool updates) {
    StepTraffic sum;
    const size_t gradient = bytes_of(op.part, op.src);
    if (op.stages.norm) sum.read += gradient;
    if (op.dst.area != Area::kNone || updates) sum.read += gradient;
    if (op.dst.area != Area::kNone) sum.written += op.dst.bytes();
    for (size_t i = 2; updates && i < op.operands.size(); ++i) {
      const Operand& operand = op.operands[i];
      if (operand.dtype == DType::kFloat32) sum.read += operand.bytes();  // else a rounded copy
      sum.written += operand.bytes();
    }
    return sum;
  }

  const Graph& graph_;
};

}  // namespace

std::vector<StepTraffic> step_traffic(const LoweredProgram& lowered, const ProgramPlan& program) {
  std::vector<StepTraffic> steps(program.schedule.steps.size());
  const TrafficCounter counter(program.graph);
  for (const Operation& op : lowered.operations) {
    StepTraffic& step = steps[static_cast<size_t>(op.step)];
    const StepTraffic more = counter.count(op);
    step.read += more.read;
    step.written += more.written;
  }
  return steps;
}

}  // namespace ofsdp::runtime
