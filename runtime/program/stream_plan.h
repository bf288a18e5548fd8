// StreamPlan: assigns the steps of a program to the streams of a device and places events between
// them.
//
// A step of the communication stream waits for all earlier steps of the compute stream. A step of
// the download stream begins on the communication stream and ends on the download stream; later
// steps of the communication stream do not wait for its end. Copies up run on a third stream,
// before the step that needs them and next to earlier steps of the communication stream.
//
// In all other cases a step waits for an earlier step of another stream only if both touch the same
// bytes and one of them writes. So a gather overlaps with the nodes before its first reader, and an
// update with the backward nodes after it. Accesses to the same bytes keep the order of the
// schedule, so results do not depend on the streams.
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
  std::vector<MemoryAccess> copies;   // copied up before it
};

struct StreamStep {
  Lane stream = Lane::kCompute;
  int forks = -1;          // event recorded on the compute stream; this step's stream waits for it
  std::vector<int> waits;  // events for which the stream waits before this step
  std::vector<int> copies_wait;  // events for which the copies up wait, besides the fork
  int records = -1;              // event recorded at the end of this step
};

struct StreamPlan {
  std::vector<StreamStep> steps;
  int events = 0;
  std::vector<int> joins;  // events for which the compute stream waits at the end
};

StreamPlan plan_streams(const std::vector<StepAccess>& steps);

// Returns the accesses of each step. Addresses encode area and offset: they are compared, never
// dereferenced. Inputs have no address, because only uploads write them.
std::vector<StepAccess> step_accesses(std::span<const Operation> operations, size_t steps);

}  // namespace ofsdp::runtime
