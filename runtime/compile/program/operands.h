// ProgramOperands: locates values and units in one rank's memory, as operands. Most locations are
// fixed. A gathered unit's parameters are at the latest Gather's offset, so lower
// (lower.h) asks at each step. Program and context outlive it.
#pragma once

#include <vector>

#include "runtime/compile/program/lower.h"
#include "runtime/compile/program/memory_map.h"

namespace ofsdp::runtime {

Operand arena_operand(int64_t offset, int64_t count, DType dtype);

class ProgramOperands {
 public:
  ProgramOperands(const StepProgram& program, const LoweringContext& context);

  // REQUIRES: if it is a parameter, the unit is gathered or stored whole.
  Operand value(ValueId id, bool writes) const;
  // Returns an operand without count. REQUIRES: a constant, or a parameter outside of all units.
  Operand kept(ValueId storage) const;
  int join(ValueId joined) const { return join_of_[static_cast<size_t>(joined)]; }

  const UnitPlaces& places(int unit) const { return of(unit).places; }
  void gathered(int unit, const Operand& whole) { units_[static_cast<size_t>(unit)].whole = whole; }
  const Operand& whole(int unit) const { return of(unit).whole; }
  // This micro-batch's gradients if they are separate from the unit's buffer; else none.
  const Operand& apart(int unit) const { return of(unit).apart; }
  // Nodes write their gradients there: apart(unit), else the unit's buffer.
  Operand gradients(int unit) const;

 private:
  struct UnitOperands {
    UnitPlaces places;
    Operand whole;  // parameters as nodes read them; none before a Gather
    Operand apart;
  };

  const UnitOperands& of(int unit) const { return units_[static_cast<size_t>(unit)]; }
  void add_unit(const Unit& unit);
  Operand place(ValueId storage) const;
  Operand loss_weight(ValueId storage) const;
  Operand in_unit(int parameter, Operand base) const;

  const StepProgram& program_;
  const Graph& graph_;
  const LoweringContext& context_;
  std::vector<ValueId> storage_;  // per value: the value that owns the bytes
  std::vector<int> parameter_;    // per value: the parameter that owns the bytes, or -1
  std::vector<int> unit_of_;      // per parameter
  std::vector<int64_t> element_;  // per parameter: first element in the unsharded unit
  std::vector<int> gradient_of_;  // per value: the parameter with this gradient, or -1
  std::vector<int> join_of_;      // per value: index among the joined rows, or -1
  std::vector<UnitOperands> units_;
};

}  // namespace ofsdp::runtime
