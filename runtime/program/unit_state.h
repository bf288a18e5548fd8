// UnitPlaces, UnitState: what a rank holds of a unit, as operands of its memory (pure), and as
// addresses.
//
// Ownership: views of the rank's memory. Threads: any. Errors: none.
#pragma once

#include <vector>

#include "runtime/program/operation.h"
#include "runtime/program/rank_memory.h"

namespace ofsdp::runtime {

struct UnitPlaces {
  Span span;  // of the unit's elements: what the rank owns
  Operand
      owned;  // parameters: the shard, or the whole, in Plan::rest_dtype; none where the host has
              // them
  std::vector<Operand> optimizer;
  Operand frozen;  // the rank's share of the frozen ones
  Operand whole;  // all parameters in Plan::param_dtype, where they are without unsharding; or none
  Operand rounded;   // of these the owned ones, which an update writes anew; or none
  Operand gradient;  // where the reduced gradient waits; or none
  Operand slot;      // the whole gradient buffer
};

UnitPlaces unit_places(const Plan& plan, const Unit& unit, int rank, const UnitOffsets& offsets);

struct UnitState {
  float* owned = nullptr;  // with an offload of the device, in Plan::rest_dtype
  std::vector<StoredState> optimizer;
  std::byte* frozen = nullptr;
  std::byte* rounded = nullptr;
  float* gradient = nullptr;
  std::byte* slot = nullptr;
  int64_t owned_numel = 0;
  int64_t owned_begin = 0;  // of the unit's flat elements
};

std::vector<UnitState> unit_states(const Plan& plan, int rank, const RankMemoryPlan& offsets,
                                   const MemoryBases& memory);

// The address of an operand in one of the five regions; null for others.
std::byte* address(const MemoryBases& memory, const Operand& operand);

}  // namespace ofsdp::runtime
