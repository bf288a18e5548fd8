// SliceRoom: where a device adds gradients in the order of slices ([Note: the same bits on any
// number of ranks] in fsdp/plan/plan.h): after each micro-batch the ranks exchange the parts of
// their slots, so that each has all ranks' gradients of what it owns, and adds them one after the
// other to the sum so far. A norm that decides is an exact sum of squares
// (runtime/engine/exact_squares.h).
//
// Ownership: views of DeviceIoPlan's block; one unit at a time uses it, on the communication
// stream.
#pragma once

#include "runtime/program/device_memory.h"

namespace ofsdp::runtime {

struct SliceRoom {
  std::byte* parts = nullptr;  // of all ranks, in order; not used by one rank alone
  float* sum = nullptr;        // where the unit has no gradient that is kept
  float* rounded = nullptr;
};

SliceRoom slice_room(const Plan& plan, const Unit& unit, std::byte* slices);
// Takes room for the unit that needs most, and for the norm.
void add_slices(DeviceIoPlan& io, const Plan& plan);

}  // namespace ofsdp::runtime
