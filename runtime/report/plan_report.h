// PlanReport: what `fsdp-run plan` says: units, memory at the peak by kind, and the schedule with
// predicted times, as text, JSON (docs/plan.md) or one HTML page that needs no network.
//
// A device has bytes, streams and events, and no seconds (device_part.h).
//
// Figures: bytes are exact, those of the run; seconds are predictions (prediction.h, simulate.h)
// for rank 0. An update is grad_accum programs one after the other; a short last batch and
// evaluation are in the list of programs and not in the update's sum.
//
// Ownership: borrows the plan. Threads: one. Errors: those of the measurements (kFault); kInput for
// a topology that does not fit the world; write_page's: kInput, kFault, naming the path.
#pragma once

#include "runtime/plan/predict/prediction.h"
#include "runtime/report/device_part.h"

namespace ofsdp::runtime {

// Bytes at the peak, by kind; together planned_bytes() of the rank. Every kind is there but those
// of devices where none computes.
struct PeakShare {
  const char* key;    // in JSON
  const char* label;  // in the table, which leaves out 0
  size_t bytes;
};
struct Peak {
  std::vector<PeakShare> shares;
  std::string node;  // whose step is the peak: "Gemm 'fc1'", or the step itself
};

Peak peak_of(const RunPlan& plan);

struct ProgramReport {
  const ProgramKey* key = nullptr;
  const ProgramPlan* program = nullptr;
  int64_t times_an_update = 0;
  Simulation simulation;
};

struct PlanReport {
  const RunPlan* plan = nullptr;
  Machine machine;
  std::optional<DevicePart> device;
  Peak peak;
  std::vector<ProgramReport> programs;
  double update_seconds = 0, update_exposed = 0, update_compute = 0, update_communication = 0;
  std::vector<double> exposed_of_unit;  // of an update
};

// Measures this machine, for one or two seconds, and simulates; neither of a device.
Result<PlanReport> make_report(const RunPlan& plan, const RunSettings& settings);

std::string text(const PlanReport& report);
// --operations: the programs as rank 0 runs them (runtime/program/operation.h).
std::string operations_text(const RunPlan& plan);
std::string to_json(const PlanReport& report, const RunSettings& settings);
std::string page(const PlanReport& report, const RunSettings& settings);

// The whole file or none.
Status write_page(const std::string& path, const std::string& page);

}  // namespace ofsdp::runtime
