#include "runtime/compile/program/operands.h"

#include <algorithm>

#include "importer/graph/graph.h"
#include "runtime/compile/program/arena_map.h"

namespace ofsdp::runtime {

Operand arena_operand(int64_t offset, int64_t count, DType dtype) {
  return {.area = Area::kArena, .offset = offset, .count = count, .dtype = dtype};
}

ProgramOperands::ProgramOperands(const StepProgram& program, const LoweringContext& context)
    : program_(program),
      graph_(program.graph),
      context_(context),
      storage_(storage_of(graph_)),
      parameter_(parameter_behind(graph_)),
      unit_of_(unit_of_parameter(graph_, context.plan)),
      element_(graph_.parameters.size(), 0),
      gradient_of_(graph_.values.size(), -1),
      join_of_(graph_.values.size(), -1) {
  for (const Unit& unit : context.plan.units) add_unit(unit);
  for (size_t i = 0; i < graph_.parameters.size(); ++i) {
    const ValueId gradient = graph_.parameters[i].gradient;
    if (gradient != 0) gradient_of_[static_cast<size_t>(gradient)] = static_cast<int>(i);
  }
  int joins = 0;
  for (const Node& node : graph_.nodes) {
    if (joins_rows(*node.op)) join_of_[static_cast<size_t>(node.outputs[0])] = joins++;
  }
}

void ProgramOperands::add_unit(const Unit& unit) {
  const auto u = static_cast<size_t>(unit.id);
  UnitOperands& made = units_.emplace_back();
  made.places = unit_places(context_.plan, unit, context_.rank, context_.memory.units[u]);
  made.whole = made.places.whole;
  const int64_t offset = program_.memory.accumulate_offset[u];
  if (offset >= 0) {
    made.apart = arena_operand(offset, unit.padded_numel, context_.plan.param_dtype);
  }
  for (const UnitParam& p : unit.params) element_[static_cast<size_t>(p.parameter)] = p.offset;
  for (const UnitParam& p : unit.frozen) {
    element_[static_cast<size_t>(p.parameter)] = unit.padded_numel + p.offset;
  }
}

Operand ProgramOperands::value(ValueId id, bool writes) const {
  Operand made;
  if (id == 0) return made;
  const ValueId root = storage_[static_cast<size_t>(id)];
  const TensorDesc& desc = graph_.value(id).desc;
  if (const int p = gradient_of_[static_cast<size_t>(root)]; p >= 0) {
    Operand base = gradients(unit_of_[static_cast<size_t>(p)]);
    base.dtype = graph_.value(root).desc.dtype;
    made = base.part(element_[static_cast<size_t>(p)], 0);
  } else if (const int k = join(root); k >= 0) {
    const size_t offset = context_.memory.joins[static_cast<size_t>(k)];
    made = {.area = Area::kShared, .offset = static_cast<int64_t>(offset)};
  } else {
    made = place(root);
  }
  made.count = desc.extent();
  made.pitch = desc.pitch;
  made.dtype = desc.dtype;
  made.writes = writes;
  return made;
}

Operand ProgramOperands::place(ValueId storage) const {
  switch (graph_.value(storage).kind) {
    case ValueKind::kAbsent:
      return {};
    case ValueKind::kInput:
      return {.area = Area::kInput,
              .offset = std::ranges::find(graph_.inputs, storage) - graph_.inputs.begin()};
    case ValueKind::kLossWeight:
      return loss_weight(storage);
    case ValueKind::kActivation: {
      const int64_t offset = program_.memory.value_offset[static_cast<size_t>(storage)];
      return offset < 0 ? Operand{} : arena_operand(offset, 0, DType::kFloat32);
    }
    case ValueKind::kConstant:
      return kept(storage);
    case ValueKind::kParameter:
      break;
  }
  const int parameter = parameter_[static_cast<size_t>(storage)];
  const int unit = unit_of_[static_cast<size_t>(parameter)];
  if (unit < 0) return kept(storage);
  OFSDP_CHECK(whole(unit).area != Area::kNone, "u{} is used before its Gather", unit);
  return in_unit(parameter, whole(unit));
}

Operand ProgramOperands::loss_weight(ValueId storage) const {
  const std::vector<LossTerm>& terms = graph_.terms;
  const auto term = std::ranges::find(terms, storage, &LossTerm::weight) - terms.begin();
  return {.area = Area::kLossWeight, .offset = term * static_cast<int64_t>(sizeof(float))};
}

Operand ProgramOperands::kept(ValueId storage) const {
  return {.area = Area::kKept,
          .offset = static_cast<int64_t>(context_.kept.offset(graph_, storage))};
}

Operand ProgramOperands::in_unit(int parameter, Operand base) const {
  base.dtype = context_.plan.param_dtype;
  return base.part(element_[static_cast<size_t>(parameter)], 0);
}

Operand ProgramOperands::gradients(int unit) const {
  if (apart(unit).area != Area::kNone) return apart(unit);
  return places(unit).slot;
}

}  // namespace ofsdp::runtime
