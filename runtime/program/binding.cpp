#include "runtime/program/binding.h"

#include <map>

namespace ofsdp::runtime {
namespace {

class Binder {
 public:
  Binder(const ProgramPlan& program, const BindingContext& context)
      : program_(program),
        graph_(program.graph),
        context_(context),
        storage_(storage_of(graph_)),
        parameter_(parameter_behind(graph_)),
        unit_(unit_of_parameter(graph_, context.plan)) {
    for (const UnitState& state : context.units) gathered_.push_back(state.whole);
    for (const Unit& unit : context.plan.units) {
      for (const UnitParam& p : unit.params) element_in_unit_[p.parameter] = p.offset;
      for (const UnitParam& p : unit.frozen) {
        element_in_unit_[p.parameter] = unit.padded_numel + p.offset;
      }
    }
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (graph_.parameters[i].gradient != 0)
        gradient_of_[graph_.parameters[i].gradient] = static_cast<int>(i);
    }
  }

  BoundProgram run() {
    bound_.plan = &program_;
    for (int64_t offset : program_.memory.accumulate_offset) {
      bound_.accumulate.push_back(offset < 0 ? nullptr : arena(offset));
    }
    for (size_t s = 0; s < program_.schedule.steps.size(); ++s) add_step(s);
    bound_.loss = reinterpret_cast<const float*>(address(graph_.loss));
    if (graph_.matches != 0)
      bound_.matches = reinterpret_cast<const int64_t*>(address(graph_.matches));
    return std::move(bound_);
  }

 private:
  std::byte* arena(int64_t offset) const { return context_.memory.arena + offset; }

  void add_step(size_t s) {
    const Step& step = program_.schedule.steps[s];
    BoundStep bound{step.kind, step.index};
    if (step.kind == StepKind::kGather) {
      std::byte*& slot = gathered_[static_cast<size_t>(step.index)];
      const int64_t offset = program_.memory.step_offset[s];
      if (offset >= 0) slot = arena(offset);
      bound.slot = slot;
    }
    if (step.kind == StepKind::kCarry) {
      const Carried& c = graph_.carried[static_cast<size_t>(step.index)];
      const ValueId value = graph_.parameters[static_cast<size_t>(c.parameter)].value;
      bound.slot = kept(value);
      bound.source = address(c.next);
      bound.bytes = graph_.value(value).desc.bytes();
    }
    if (step.kind == StepKind::kRun) {
      bound.index = static_cast<int>(bound_.runs.size());
      add_run(s, static_cast<size_t>(step.index));
    }
    bound_.steps.push_back(bound);
  }

  void add_run(size_t s, size_t n) {
    const Node& node = graph_.nodes[n];
    BoundRun run{program_.kernels[n], {}, {}, nullptr, &node};
    if (program_.memory.step_offset[s] >= 0) run.workspace = arena(program_.memory.step_offset[s]);
    for (ValueId id : node.inputs) {
      const int column = input_column(id);
      if (column >= 0) {
        bound_.inputs.push_back(
            {static_cast<int>(bound_.runs.size()), static_cast<int>(run.inputs.size()), column});
      }
      run.inputs.push_back(view(id));
    }
    for (ValueId id : node.outputs) run.outputs.push_back(view(id));
    bound_.runs.push_back(std::move(run));
  }

  TensorView view(ValueId id) const {
    return id == 0 ? TensorView{} : TensorView{address(id), graph_.value(id).desc};
  }

  int input_column(ValueId id) const {
    const ValueId root = storage_[static_cast<size_t>(id)];
    for (size_t i = 0; id != 0 && i < graph_.inputs.size(); ++i) {
      if (graph_.inputs[i] == root) return static_cast<int>(i);
    }
    return -1;
  }

  // At the present step: a parameter of a unit is where the unit's latest Gather put it.
  std::byte* address(ValueId id) const {
    const ValueId root = storage_[static_cast<size_t>(id)];
    const Value& value = graph_.value(root);
    if (const auto it = gradient_of_.find(root); it != gradient_of_.end())
      return gradient(it->second);
    switch (value.kind) {
      case ValueKind::kAbsent:
      case ValueKind::kInput:
        return nullptr;
      case ValueKind::kLossWeight:
        return reinterpret_cast<std::byte*>(context_.loss_weight);
      case ValueKind::kActivation: {
        const int64_t offset = program_.memory.value_offset[static_cast<size_t>(root)];
        return offset < 0 ? nullptr : arena(offset);
      }
      case ValueKind::kConstant:
        return kept(root);
      case ValueKind::kParameter:
        break;
    }
    const int parameter = parameter_[static_cast<size_t>(root)];
    return unit_[static_cast<size_t>(parameter)] < 0 ? kept(root) : gathered(parameter);
  }

  std::byte* kept(ValueId root) const {
    return context_.memory.kept + context_.kept.offset(graph_, root);
  }

  std::byte* in_unit(int parameter, std::byte* base) const {
    const auto element = static_cast<size_t>(element_in_unit_.at(parameter));
    return base + element * dtype_size(context_.plan.param_dtype);
  }

  std::byte* gathered(int parameter) const {
    const auto unit = static_cast<size_t>(unit_[static_cast<size_t>(parameter)]);
    OFSDP_CHECK(gathered_[unit] != nullptr, "u{} is used before its Gather", unit);
    return in_unit(parameter, gathered_[unit]);
  }

  std::byte* gradient(int parameter) const {
    const auto unit = static_cast<size_t>(unit_[static_cast<size_t>(parameter)]);
    std::byte* own = bound_.accumulate[unit];
    return in_unit(parameter, own != nullptr ? own : context_.units[unit].slot);
  }

  const ProgramPlan& program_;
  const Graph& graph_;
  const BindingContext& context_;
  std::vector<ValueId> storage_;
  std::vector<int> parameter_;  // per value: the parameter behind it, or -1
  std::vector<int> unit_;
  std::vector<std::byte*> gathered_;
  std::map<int, int64_t> element_in_unit_;  // parameter -> its first, of a gathered unit
  std::map<ValueId, int> gradient_of_;
  BoundProgram bound_;
};

}  // namespace

BoundProgram bind(const ProgramPlan& program, const BindingContext& context) {
  return Binder(program, context).run();
}

}  // namespace ofsdp::runtime
