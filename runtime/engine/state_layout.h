// The places of a rank's optimizer states: for each unit and state one flat array.
//
// If all parameters of a unit have the state, an element each, the array is as long as what the
// rank owns of the unit, and an element is where its parameter's is. Else it has the parts of the
// parameters that have the state, one after the other, each at a multiple of the alignment. The
// factors of a parameter's matrices are whole for every matrix that the rank owns an
// element of.
//
// Pure. Ownership: parts are views of the unit. Threads: any. Errors: none.
#pragma once

#include "fsdp/plan/plan.h"
#include "importer/graph/graph.h"
#include "runtime/engine/update_plan.h"

namespace ofsdp::runtime {

// The shape of a state: the parameter's, or that with 1 as the last axis (factors of rows) or as
// the one before it (of columns).
Shape state_shape(const ParameterUpdate& update, size_t state, const Shape& parameter);

struct StatePart {
  const UnitParam* param = nullptr;
  int64_t first = 0;  // element of the state's tensor
  int64_t count = 0;
  int64_t at = 0;  // where the array has it
};

// The parts of a rank that owns `owned`, in the order of the parameters.
std::vector<StatePart> state_parts(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   size_t state);
// The elements of these that the rank alone stands for that represents `unique`.
std::vector<StatePart> state_share(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   const Span& unique, size_t state);

// Whether all parameters of the unit have the state, an element each.
bool is_whole(const UpdatePlan& updates, const Unit& unit, size_t state);

// Elements of the array of each unit and state: the same on all ranks, what the fullest needs.
std::vector<std::vector<int64_t>> state_numels(const UpdatePlan& updates, const Plan& plan);

}  // namespace ofsdp::runtime
