// PlanReport: what `fsdp-run plan` says: units, memory at the peak by kind, and the schedule with
// predicted times, as text, JSON (docs/plan.md) or one HTML page that needs no network.
//
// Of a device there are bytes, streams and events, and no seconds (device_part.h).
//
// Figures: bytes are exact, those of the run; seconds are predictions (step_costs.h, simulate.h) for
// rank 0. An update is grad_accum programs one after the other; a short last batch and evaluation
// are in the list of programs and not in the update's sum.
//
// Ownership: borrows the plan. Threads: one. Errors: those of the measurements (kFault); kInput for
// a topology that does not fit the world; write_page's: kInput, kFault, naming the path.
#pragma once

#include "runtime/plan/predict/step_costs.h"
#include "runtime/report/device_part.h"

namespace ofsdp::runtime {

// At the peak, in bytes; together planned_bytes() of the rank.
struct PeakShares {
  size_t parameters = 0, optimizer = 0, gradients = 0;
  size_t gathered = 0, activations = 0, workspace = 0;
  size_t constants = 0, input = 0, checkpoint = 0, trace = 0;
  size_t in_out = 0;  // of a device, both ends
  size_t unused = 0;  // of the arena at that moment, gaps between pieces, the rest of last pages

  std::string node;  // whose step is the peak: "Gemm 'fc1'", or the step itself
};

PeakShares peak_shares(const RunPlan& plan);

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
  PeakShares peak;
  std::vector<ProgramReport> programs;
  double update_seconds = 0, update_exposed = 0, update_compute = 0, update_communication = 0;
  std::vector<double> exposed_of_unit;  // of an update
};

// Measures this machine, for one or two seconds, and simulates; neither of a device.
Result<PlanReport> make_report(const RunPlan& plan, const Options& options);

std::string text(const PlanReport& report);
// --operations: the programs as rank 0 runs them (runtime/program/operation.h).
std::string operations_text(const RunPlan& plan);
std::string to_json(const PlanReport& report, const Options& options);
std::string page(const PlanReport& report, const Options& options);

// The whole file or none.
Status write_page(const std::string& path, const std::string& page);

}  // namespace ofsdp::runtime
