#include "runtime/engine/binding.h"

namespace ofsdp::runtime {
namespace {

class Binder {
 public:
  Binder(const StepProgram& program, const BindingContext& context)
      : program_(program), context_(context) {}

  BoundProgram run() {
    LoweredProgram lowered = lower(program_, context_.lowering);
    bound_.plan = &program_;
    for (auto* list : {&lowered.operations, &lowered.host}) {
      for (Operation& op : *list) {
        for (Operand* operand : {&op.src, &op.dst, &op.onto}) resolve(*operand);
        for (Operand& operand : op.operands) resolve(operand);
        if (op.run >= 0) add_run(op);
      }
    }
    for (Operand& loss : lowered.losses) {
      resolve(loss);
      bound_.losses.push_back(loss.floats());
    }
    resolve(lowered.matches);
    bound_.matches = reinterpret_cast<const int64_t*>(lowered.matches.data);
    for (Operand& rows : lowered.measured) {
      resolve(rows);
      bound_.measured.emplace_back(reinterpret_cast<const double*>(rows.data),
                                   static_cast<size_t>(rows.count));
    }
    bound_.operations = std::move(lowered.operations);
    bound_.host = std::move(lowered.host);
    return std::move(bound_);
  }

 private:
  void resolve(Operand& operand) const {
    if (operand.area == Area::kHost) {
      operand.data = context_.host + operand.offset;
    } else if (operand.area == Area::kLossWeight) {
      operand.data = reinterpret_cast<std::byte*>(context_.loss_weights) + operand.offset;
    } else {
      operand.data = address(context_.memory, operand);
    }
  }

  void add_run(const Operation& op) {
    const auto n = static_cast<size_t>(op.node);
    const Node& node = program_.graph.nodes[n];
    BoundRun run{program_.kernels[n], {}, {}, nullptr, &node};
    const auto view = [&](ValueId id, const Operand& operand) {
      return id == 0 ? TensorView{} : TensorView{operand.data, program_.graph.value(id).desc};
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Operand& operand = op.operands[i];
      run.inputs.push_back(view(node.inputs[i], operand));
      if (operand.area != Area::kInput) continue;
      bound_.inputs.push_back({op.run, static_cast<int>(i), static_cast<int>(operand.offset)});
    }
    const size_t operands = node.inputs.size() + node.outputs.size();
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      run.outputs.push_back(view(node.outputs[i], op.operands[node.inputs.size() + i]));
    }
    if (op.operands.size() > operands) run.workspace = op.operands.back().data;
    bound_.runs.push_back(std::move(run));
  }

  const StepProgram& program_;
  const BindingContext& context_;
  BoundProgram bound_;
};

}  // namespace

BoundProgram bind(const StepProgram& program, const BindingContext& context) {
  return Binder(program, context).run();
}

}  // namespace ofsdp::runtime
