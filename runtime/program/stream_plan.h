// StreamPlan: which steps of a program run next to the compute stream of a device, and the events
// between its streams.
//
// A step of the communication stream waits for all that the schedule has put on the compute stream
// before it. A step of the download stream begins on the communication stream, like one of that,
// and ends on its own; what follows it on the communication stream does not wait for that end.
// Copies up, with which a step of the communication stream begins, run on a stream of their own,
// next to earlier steps of the communication stream. Otherwise a step waits for an earlier one of
// another stream only where both touch the same bytes and one of them writes: so a gather runs next
// to the nodes before its first use, an update next to the backward nodes after it. What is ordered
// in the schedule and touches the same bytes is ordered on the device; that is all the results
// depend on.
//
// Pure.
#pragma once

#include <span>
#include <vector>

#include "runtime/program/operation.h"

namespace ofsdp::runtime {

struct MemoryAccess {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

struct StepAccess {
  Lane stream = Lane::kCompute;
  std::vector<MemoryAccess> touches;  // empty: nothing is put on a stream
  std::vector<MemoryAccess> copies;   // what is copied up for it
};

struct StreamStep {
  Lane stream = Lane::kCompute;
  int forks = -1;  // event: recorded on compute, then waited for, before another stream's step
  std::vector<int> waits;        // events that the stream it begins on waits for before it
  std::vector<int> copies_wait;  // events that its copies up wait for, besides the fork
  int records = -1;              // event recorded after this step on the stream it ends on
};

struct StreamPlan {
  std::vector<StreamStep> steps;
  int events = 0;
  std::vector<int> joins;  // events that the compute stream waits for at the end; none: no other
                           // stream was used
};

StreamPlan plan_streams(const std::vector<StepAccess>& steps);

// Lists what each of `steps` steps touches. Addresses are made up of area and offset: they are
// compared and never followed. Inputs have none; only uploads write them.
std::vector<StepAccess> step_accesses(std::span<const Operation> operations, size_t steps);

}  // namespace ofsdp::runtime
