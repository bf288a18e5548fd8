// PlanReport: the output of `fsdp-run plan`: units, memory at the peak by kind, and the schedule
// with predicted times, as text, JSON (docs/plan.md) or one HTML page that needs no network. For a
// device it has bytes, streams and events, but no times.
//
// Bytes are exact: the run uses the same. Times are predictions for rank 0 (prediction.h,
// simulate.h). An update is grad_accum programs in a row; a short last batch and evaluation are
// listed as programs, but not part of the sum.
//
// Borrows the plan. Errors: kFault of the measurements; kInput if the topology does not fit the
// world; from write_page kInput or kFault with the path.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/predict/prediction.h"
#include "runtime/plan/run_plan.h"
#include "runtime/program/lower.h"
#include "runtime/program/stream_plan.h"

namespace ofsdp::runtime {

// The matrices that Muon orthogonalizes, the ranks that do it, and the load of each rank.
struct DealtMatrix {
  std::string name;
  int unit = 0;
  const OrthogonalMatrix* matrix = nullptr;
  std::vector<int> ranks;  // one for each copy of the unit
};

struct OrthogonalLoad {  // of a rank
  int64_t matrices = 0;
  size_t bytes = 0;  // of these matrices
  double flops = 0;  // for an update
};

std::vector<DealtMatrix> dealt_matrices(const RunPlan& plan);
std::vector<OrthogonalLoad> orthogonal_loads(const RunPlan& plan);  // one a rank

// Returns two tables with headings; empty if Muon takes no matrix.
std::string orthogonal_table(const RunPlan& plan);

// StepTraffic: the bytes of device memory that a step reads and writes, from the operands. This is
// a lower bound, since products and attention read some operands twice, but an upper bound if
// indices select rows of a table. An update reads the values that it changes. Workspaces, data for
// other ranks, and copies between host and device do not count.
struct StepTraffic {
  size_t read = 0, written = 0;
};

// Returns the traffic of each step of the schedule from which `lowered` was made.
std::vector<StepTraffic> step_traffic(const LoweredProgram& lowered, const ProgramPlan& program);

// DevicePart: the part of `fsdp-run plan` about a device: the memories, and for each program the
// stream and the bytes of each step and the events between streams; the run uses the same
// (runtime/program/stream_plan.h). There are no times, since devices are not measured.
struct DevicePart {
  std::string description;
  bool here = true;  // false: this machine lacks the device, so kernels and workspaces are unknown
  size_t device_bytes = 0, pinned_bytes = 0, host_bytes = 0;  // their sum is planned_bytes()
  std::map<const ProgramPlan*, StreamPlan> streams;
  std::map<const ProgramPlan*, std::vector<StepTraffic>> traffic;  // one a step
};

// Returns the part of rank 0.
DevicePart device_part(const RunPlan& run);

std::string text(const DevicePart& part);
// "streams: compute 20 steps, communication 5; 4 events; joined: epilogue 3".
std::string streams_line(const DevicePart& part, const ProgramPlan& program);
// Returns the results with padded rows (TensorDesc), each with the name of the node.
std::vector<std::pair<std::string, TensorDesc>> pitched_results(const ProgramPlan& program);
// "rows: 'head' float32[20, 1003] in rows of 1024, ..."; empty if no rows are padded.
std::string rows_line(const ProgramPlan& program);
// Returns the end of a step's line in the schedule: "  [communication; forks 1; waits 0; event 2]";
// empty for a step of the compute stream without events.
std::string stream_text(const StreamStep& step);
const char* stream_name(Lane stream);

// Bytes at the peak by kind; the sum is planned_bytes() of the rank. Kinds of devices are absent if
// none computes.
struct PeakShare {
  const char* key;    // in JSON
  const char* label;  // in the table, which leaves out zeros
  size_t bytes;
};
struct Peak {
  std::vector<PeakShare> shares;
  std::string node;  // the node of the peak: "Gemm 'fc1'", or the step
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
  std::vector<double> exposed_of_unit;  // in an update
};

// Measures this machine for one or two seconds and simulates; for a device it does neither.
Result<PlanReport> make_report(const RunPlan& plan, const RunSettings& settings);

std::string text(const PlanReport& report);
// Returns the text of --operations: the programs as rank 0 runs them (runtime/program/operation.h).
std::string operations_text(const RunPlan& plan);
std::string to_json(const PlanReport& report, const RunSettings& settings);
std::string page(const PlanReport& report, const RunSettings& settings);

// Writes the whole file or nothing.
Status write_page(const std::string& path, const std::string& page);

// Returns the text of `fsdp-run plan --explain`: a line for each node in the order of the graph,
// with the implementation of the kernel and why earlier implementations in the list were not taken:
// "Relu '/relu/Relu': loops (not onednn: REASON)". Views have no kernel. Makes the kernels of the
// program with the largest arena once more, to ask for the choice.

std::string explain(const RunPlan& plan);

}  // namespace ofsdp::runtime
