// StreamPlan: which steps of a program run on the communication stream of a device, and the events
// between it and the compute stream.
//
// A step on the communication stream waits for all that the schedule has put on the compute stream
// before it. A step on the compute stream waits for an earlier one of the other stream only where
// both touch the same bytes and one of them writes: so a gather runs beside the nodes before its
// first use, an update beside the backward nodes behind it. What is ordered in the schedule and
// touches the same bytes is ordered on the device; that is all the results depend on.
//
// Pure. Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <vector>

namespace ofsdp {

struct MemoryAccess {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  bool writes = false;
};

struct StepAccess {
  bool communication = false;
  std::vector<MemoryAccess> touches;  // empty: nothing is put on a stream
};

struct StreamStep {
  bool communication = false;
  int forks = -1;    // event: recorded on compute, then waited for, before a communication step
  int waits = -1;    // event that the compute stream waits for before this step
  int records = -1;  // event recorded on the communication stream behind this step
};

struct StreamPlan {
  std::vector<StreamStep> steps;
  int events = 0;
  int join =
      -1;  // event that the compute stream waits for at the end; -1: no other stream was used
};

StreamPlan plan_streams(const std::vector<StepAccess>& steps);

}  // namespace ofsdp
