// ProgramOperands: where one rank has the values of a program's graph and the parts of each unit.
// Most places hold for the whole program. A unit that is gathered moves: its parameters are where
// the latest Gather put them, so lower (lower.h) asks step by step.
//
// Ownership: views of program and context. Threads: one. Errors: none.
#pragma once

#include <vector>

#include "runtime/program/lower.h"
#include "runtime/program/unit_state.h"

namespace ofsdp::runtime {

Operand arena_operand(int64_t offset, int64_t count, DType dtype);

class ProgramOperands {
 public:
  ProgramOperands(const ProgramPlan& program, const LoweringContext& context);

  // REQUIRES: a parameter of a unit that has no place of its own was gathered.
  Operand value(ValueId id, bool writes) const;
  // `storage`: a constant, or a parameter outside of all units; without its extent.
  Operand kept(ValueId storage) const;
  int join(ValueId joined) const { return join_of_[static_cast<size_t>(joined)]; }

  const UnitPlaces& places(int unit) const { return of(unit).places; }
  void gathered(int unit, const Operand& whole) { units_[static_cast<size_t>(unit)].whole = whole; }
  const Operand& whole(int unit) const { return of(unit).whole; }
  // This micro-batch's gradients, where they are apart from the unit's buffer; or none.
  const Operand& apart(int unit) const { return of(unit).apart; }
  // Nodes write there: these, or the unit's buffer.
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

  const ProgramPlan& program_;
  const Graph& graph_;
  const LoweringContext& context_;
  std::vector<ValueId> storage_;  // per value: the one whose bytes it shows
  std::vector<int> parameter_;    // per value: the parameter whose bytes it shows, or -1
  std::vector<int> unit_of_;      // per parameter
  std::vector<int64_t> element_;  // per parameter: its first, of an unsharded unit
  std::vector<int> gradient_of_;  // per value: the parameter whose gradient it is, or -1
  std::vector<int> join_of_;      // per value: which of the joined rows it is, or -1
  std::vector<UnitOperands> units_;
};

}  // namespace ofsdp::runtime
