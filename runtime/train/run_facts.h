// Text about a run before it starts: the facts for runtime/log/screen.h, and the tables of `plan`
// and --verbose.
#pragma once

#include <string>

#include "fsdp/comm/communicator.h"
#include "kernels/base/cgroup.h"
#include "runtime/log/screen.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

// Lines before the start: teacher, types, --cpu-offload, slices, missing memory.

// --param-dtype, --reduce-dtype, --buffer-dtype, --matmul-precision.
std::string dtypes_lines(const Options& options, bool on_device);

// Empty if there is no teacher.
std::string teacher_line(const ModelSetup& setup);

// With --cpu-offload: the bytes pinned on the host and copied by an update of full micro-batches,
// or that the option has no effect on the CPU; else empty. `exact`: as bytes.
std::string offload_line(const RunPlan& plan, const RunSettings& settings, bool exact);

// With --deterministic across_ranks; else empty.
std::string slices_line(const BatchSizes& batch);

// Says that the ranks of this host need more memory than it allows; empty if it is enough or a
// device computes.
std::string memory_lack(const RunPlan& plan, const Communicator& communicator,
                        const MachineMemory& memory);

// The configuration of a run as text, on rank 0; made from the option table (runtime/cli).
struct RunTexts {
  std::string configuration;          // the effective one, as YAML; empty: not saved
  std::vector<std::string> settings;  // settings that differ from their defaults
};

struct PlannedRun {
  const ModelSetup& setup;
  const RunPlan& plan;
  const RunSettings& settings;
  const Communicator& communicator;
  const std::string& device_notice;  // a line, or empty
};

OpeningFacts opening_facts(const PlannedRun& run, const std::vector<std::string>& settings);

// Returns the complete tables: the configuration, every tensor and why it is not trained.
std::string opening_tables(const PlannedRun& run);

// Returns the tokens of a sample if labels are a row of tokens, else 1: the unit of rates.
int64_t tokens_a_sample(const ModelSetup& setup);

}  // namespace ofsdp::runtime
