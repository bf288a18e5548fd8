#include "runtime/program/unit_state.h"

namespace ofsdp::runtime {
namespace {

Operand at(Area area, size_t offset, int64_t count, DType dtype) {
  return {.area = area, .offset = static_cast<int64_t>(offset), .count = count, .dtype = dtype};
}

// One of fewer bits is so many bytes.
Operand place_of(const StateOffset& state) {
  if (state.form == StateForm::kFloat32) {
    return at(Area::kState, state.offset, state.numel, DType::kFloat32);
  }
  const auto bytes = static_cast<int64_t>(stored_bytes(state.form, state.numel));
  return at(Area::kState, state.offset, bytes, DType::kUInt8);
}

// [Note: in place] in fsdp/plan/plan.h.
void place_in_common(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& o,
                     UnitPlaces& made) {
  const auto copy = static_cast<size_t>(rank % plan.common_ranks / unit.plan.shards);
  made.whole = at(Area::kCommon, static_cast<size_t>(o.copies) + copy * copy_bytes(plan, unit),
                  unit.padded_numel + unit.frozen_padded_numel, plan.param_dtype);
  made.owned = made.whole.part(made.span.begin, made.span.numel);
  if (plan.param_dtype != DType::kFloat32) {
    made.rounded = made.owned;
    made.owned = at(Area::kState, o.owned, made.span.numel, DType::kFloat32);
  }
  const Span frozen = plan.owned_frozen(unit, rank);
  made.frozen = made.whole.part(unit.padded_numel + frozen.begin, frozen.numel);
}

void place_parameters(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& o,
                      UnitPlaces& made) {
  const auto place = static_cast<size_t>(rank % unit.plan.shards);
  const bool rests_here = plan.offload != CpuOffload::kParams;
  if (rests_here) {
    made.owned = at(o.owned_in_shared ? Area::kShared : Area::kState,
                    o.owned + place * o.owned_stride, made.span.numel, plan.rest_dtype);
    made.frozen =
        at(Area::kShared, o.frozen, plan.owned_frozen(unit, rank).numel, plan.param_dtype);
  }
  if (o.whole >= 0) {
    made.whole = at(o.owned_stride > 0 ? Area::kShared : Area::kState, static_cast<size_t>(o.whole),
                    unit.padded_numel, plan.param_dtype);
    if (unit.plan.rounded) made.rounded = made.whole;
  } else if (unit.plan.unshard == Unshard::kNone) {
    made.whole = made.owned;
  }
}

}  // namespace

UnitPlaces unit_places(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& o) {
  UnitPlaces made;
  made.span = plan.owned(unit, rank);
  if (o.copies >= 0) {
    place_in_common(plan, unit, rank, o, made);
  } else {
    place_parameters(plan, unit, rank, o, made);
  }
  for (const StateOffset& state : o.optimizer) made.optimizer.push_back(place_of(state));
  made.slot = at(Area::kShared, o.slot, unit.padded_numel, unit.plan.gradient_dtype);
  if (o.gradient >= 0) {
    made.gradient = at(o.gradient_in_shared ? Area::kShared : Area::kState,
                       static_cast<size_t>(o.gradient), made.span.numel, DType::kFloat32);
  } else if (!unit.plan.shards_gradients) {
    made.gradient = made.slot.part(made.span.begin, made.span.numel);
  }
  return made;
}

std::byte* address(const MemoryBases& memory, const Operand& operand) {
  const auto offset = static_cast<size_t>(operand.offset);
  switch (operand.area) {
    case Area::kArena:
      return memory.arena + offset;
    case Area::kKept:
      return memory.kept + offset;
    case Area::kState:
      return memory.state + offset;
    case Area::kShared:
      return memory.shared + offset;
    case Area::kCommon:
      return memory.common + offset;
    default:
      return nullptr;
  }
}

std::vector<UnitState> unit_states(const Plan& plan, int rank, const RankMemoryPlan& offsets,
                                   const MemoryBases& memory) {
  std::vector<UnitState> units;
  for (const Unit& unit : plan.units) {
    const UnitOffsets& own = offsets.units[static_cast<size_t>(unit.id)];
    const UnitPlaces places = unit_places(plan, unit, rank, own);
    const auto floats = [&](const Operand& o) {
      return reinterpret_cast<float*>(address(memory, o));
    };
    UnitState& made = units.emplace_back();
    made.owned = floats(places.owned);
    for (size_t i = 0; i < own.optimizer.size(); ++i) {
      const StateOffset& state = own.optimizer[i];
      made.optimizer.push_back(
          stored_state(state.form, address(memory, places.optimizer[i]), state.numel));
    }
    made.frozen = address(memory, places.frozen);
    made.rounded = address(memory, places.rounded);
    made.gradient = floats(places.gradient);
    made.slot = address(memory, places.slot);
    made.owned_numel = places.span.numel;
    made.owned_begin = places.span.begin;
  }
  return units;
}

}  // namespace ofsdp::runtime
