// DevicePart: the part of `fsdp-run plan` about a device: the memories that its bytes are in, and
// for each program the stream and the bytes of each step, and the events between streams, which are
// the run's (runtime/program/stream_plan.h). Nothing has measured devices, so there are no times.
//
// Pure. Errors: none.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/run_plan.h"
#include "runtime/program/stream_plan.h"
#include "runtime/report/step_traffic.h"

namespace ofsdp::runtime {

struct DevicePart {
  std::string description;
  bool here = true;  // else its kernels and their workspaces are not known
  size_t device_bytes = 0, pinned_bytes = 0, host_bytes = 0;  // together planned_bytes()
  std::map<const ProgramPlan*, StreamPlan> streams;
  std::map<const ProgramPlan*, std::vector<StepTraffic>> traffic;  // a step each
};

// The part of rank 0.
DevicePart device_part(const RunPlan& run);

std::string text(const DevicePart& part);
// "streams: compute 20 steps, communication 5; 4 events; joined: epilogue 3".
std::string streams_line(const DevicePart& part, const ProgramPlan& program);
// Lists the results whose rows have a pitch (TensorDesc), each with the name of its node.
std::vector<std::pair<std::string, TensorDesc>> pitched_results(const ProgramPlan& program);
// "rows: 'head' float32[20, 1003] in rows of 1024, ..."; nothing where there are none.
std::string rows_line(const ProgramPlan& program);
// The end of a step's line of the schedule: "  [communication; forks 1; waits 0; event 2]", or
// nothing for a step of the compute stream without events.
std::string stream_text(const StreamStep& step);
const char* stream_name(Lane stream);

}  // namespace ofsdp::runtime
