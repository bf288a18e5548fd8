// PlanReport: the output of `fsdp-run plan`: memory at the peak by kind and predicted times in a
// summary of a few lines; on demand units, tables and the schedule; as JSON
// (docs/internals/plan.md) or one HTML page that needs no network. For a device it has bytes,
// streams and events, but no times.
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

#include "runtime/compile/compile.h"
#include "runtime/compile/prediction.h"
#include "runtime/compile/program/lower.h"
#include "runtime/compile/program/operation.h"

namespace ofsdp::runtime {

// The matrices that Muon orthogonalizes, the ranks that do it, and each rank's load.
struct DealtMatrix {
  std::string name;
  int unit = 0;
  const OrthogonalMatrix* matrix = nullptr;
  std::vector<int> ranks;  // one in each copy of the model
};

struct OrthogonalLoad {  // per rank
  int64_t matrices = 0;
  size_t bytes = 0;  // all matrices together
  double flops = 0;  // for an update
};

std::vector<DealtMatrix> dealt_matrices(const CompiledRun& plan);
std::vector<OrthogonalLoad> orthogonal_loads(const CompiledRun& plan);  // one a rank

// Returns two tables with headings; empty if Muon takes no matrix.
std::string orthogonal_table(const CompiledRun& plan);

// StepTraffic: the bytes that a step reads and writes in device memory, by the operands. This is
// a lower bound, since products and attention read some operands twice, but an upper bound if
// indices select rows of a table. An update reads the values that it changes. Workspaces, data for
// other ranks, and copies between host and device do not count.
struct StepTraffic {
  size_t read = 0, written = 0;
};

// Returns each step's traffic, for the schedule from which `lowered` was made.
std::vector<StepTraffic> step_traffic(const LoweredProgram& lowered, const StepProgram& program);

// DevicePart: the part of `fsdp-run plan` about a device: the memories, and for each program the
// stream and the bytes for each step and the events between streams; the run uses the same
// (runtime/compile/program/operation.h). There are no times, since devices are not measured.
struct DevicePart {
  std::string description;
  bool here = true;  // false: this machine lacks the device, so kernels and workspaces are unknown
  size_t device_bytes = 0, pinned_bytes = 0, host_bytes = 0;  // their sum is planned_bytes()
  std::map<const StepProgram*, StreamSchedule> streams;
  std::map<const StepProgram*, std::vector<StepTraffic>> traffic;  // one a step
};

// Returns rank 0's part.
DevicePart device_part(const CompiledRun& run);

std::string text(const DevicePart& part);
// "streams: compute 20 steps, communication 5; 4 events; joined: epilogue 3".
std::string streams_line(const DevicePart& part, const StepProgram& program);
// Returns the results with padded rows (TensorDesc), each with the node's name.
std::vector<std::pair<std::string, TensorDesc>> pitched_results(const StepProgram& program);
// "rows: 'head' float32[20, 1003] in rows of 1024, ..."; empty if no rows are padded.
std::string rows_line(const StepProgram& program);
// Returns a suffix for a step's line in the schedule: "  [communication; forks 1; waits 0; event
// 2]"; empty if a compute step has no events.
std::string stream_text(const StreamStep& step);
const char* stream_name(Lane stream);

// Bytes at the peak by kind; they add up to planned_bytes(). Device kinds are absent if
// none computes.
struct PeakShare {
  const char* key;    // in JSON
  const char* label;  // in the table, which leaves out zeros
  size_t bytes;
};
struct Peak {
  std::vector<PeakShare> shares;
  std::string node;  // the node at the peak: "Gemm 'fc1'", or the step
};

Peak peak_of(const CompiledRun& plan);

struct ProgramReport {
  const ProgramKey* key = nullptr;
  const StepProgram* program = nullptr;
  int64_t times_an_update = 0;
  Simulation simulation;
};

struct PlanReport {
  const CompiledRun* plan = nullptr;
  Machine machine;
  std::optional<DevicePart> device;
  Peak peak;
  std::vector<ProgramReport> programs;
  double update_seconds = 0, update_exposed = 0, update_compute = 0, update_communication = 0;
  std::vector<double> exposed_of_unit;  // in an update
};

// Returns the bytes that rank 0 receives from other ranks in an update, in gathers and reductions.
// Ranks that read each other's shards in place receive no parameters.
size_t received_bytes(const CompiledRun& plan);

// Measures this machine for one or two seconds and simulates; for a device it does neither.
Result<PlanReport> make_report(const CompiledRun& plan, const RunSettings& settings);

inline constexpr int kSummaryLines = 20;

// Facts about the model and the run for the summary, besides the report.
struct PlanFacts {
  std::string model;  // escaped, like the lines below
  int64_t tensors = 0, trained_tensors = 0, trained_numbers = 0;
  std::string loss;
  std::vector<std::string> notices;  // lines about device, types, offload
  std::string verdict;               // a line: whether the machine has the memory; or empty
};

// Returns the answer of `fsdp-run plan` in at most kSummaryLines lines.
std::string summary_text(const PlanReport& report, const PlanFacts& facts, const BatchSizes& batch);
// Returns the table of the plans that --wrap auto has compared, and a blank line; empty if it has
// not.
std::string candidates_text(const CompiledRun& plan);
// Returns the text of --schedule: each program with its steps.
std::string schedule_text(const PlanReport& report);
// Returns the tables of --verbose: units, all memory, the programs, with --schedule their steps.
std::string text(const PlanReport& report, bool steps);
// Returns the text of --operations: the programs as rank 0 runs them
// (runtime/compile/program/operation.h).
std::string operations_text(const CompiledRun& plan);
std::string to_json(const PlanReport& report, const RunSettings& settings);
std::string page(const PlanReport& report, const RunSettings& settings);

// Writes the whole file or nothing.
Status write_page(const std::string& path, const std::string& page);

// Returns the text of `fsdp-run plan --explain`: a line for each node in graph order, with the
// kernel's implementation and the reasons against earlier ones in the list:
// "Relu '/relu/Relu': loops (not onednn: REASON)". Views have no kernel. Makes the kernels of the
// program with the largest arena once more, to ask for the choice.

std::string explain(const CompiledRun& plan);

}  // namespace ofsdp::runtime
