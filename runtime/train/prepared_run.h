// PreparedRun: a run that is ready to execute: model and data are open, settings and starting point
// resolved, the device chosen, everything planned, and the plan agreed on by all ranks.
//
// The code reads from top to bottom as the stages. run_session executes it for a command,
// BatchTrainer for a library caller.
//
// Borrows RunContext. Collective. Errors: kInput before anything is allocated for the run; an
// exchange's errors.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/comm/communicator.h"
#include "kernels/base/process.h"
#include "kernels/core/op_def.h"
#include "kernels/core/optimizer.h"
#include "runtime/compile/compile.h"
#include "runtime/log/log_parts.h"
#include "runtime/log/screen.h"
#include "runtime/train/rank_state.h"
#include "runtime/train/setup/run_folder.h"

namespace ofsdp::runtime {

// Text about a run before it starts: the facts for runtime/log/screen.h, and the tables that `plan`
// and --verbose print.

// Lines before the start: teacher, types, --cpu-offload, slices, missing memory.

// --param-dtype, --reduce-dtype, --buffer-dtype, --matmul-precision.
std::string dtypes_lines(const Options& options, bool on_device);

// Empty if there is no teacher.
std::string teacher_line(const ModelSetup& setup);

// With --cpu-offload: the bytes pinned on the host and copied by an update with full micro-batches,
// or that the option has no effect on the CPU; else empty. `exact`: as bytes.
std::string offload_line(const CompiledRun& plan, const RunSettings& settings, bool exact);

// With --deterministic across_ranks; else empty.
std::string slices_line(const BatchSizes& batch);

// Says that this host's ranks need more memory than it allows; empty if it is enough or a device
// computes.
std::string memory_lack(const CompiledRun& plan, const Communicator& communicator,
                        const MachineMemory& memory);

// A run's configuration as text, on rank 0; made from the option table (runtime/cli).
struct RunTexts {
  std::string configuration;               // the effective one, as YAML; empty: not saved
  std::vector<std::string> settings;       // settings that differ from their defaults
  std::vector<std::string> command = {};   // as typed, with the program; empty: a library call
  std::vector<std::string> launcher = {};  // words before it, such as mpirun -n 2; may be empty
};

// Returns the line for a run that a signal has stopped after `made` of `total` updates, with the
// command that continues it. `options`: with the places of its folder, if it has one.
std::string stopped_line(const RunTexts& texts, const Options& options, int64_t made, int64_t total,
                         bool saved);

struct PlannedRun {
  const ModelSetup& setup;
  const CompiledRun& plan;
  const RunSettings& settings;
  const Communicator& communicator;
  const std::string& device_notice;  // a line, or empty
};

OpeningFacts opening_facts(const PlannedRun& run, const std::vector<std::string>& settings);

// Returns the complete tables: the configuration, every tensor and why it is not trained.
std::string opening_tables(const PlannedRun& run);

// Returns the files that a run writes at its end.
std::vector<WrittenFile> trained_files(const Options& options);
// Returns the files that a run writes while it trains or evaluates.
std::vector<WrittenFile> record_files(const Options& options);
// Names the run's folder in place of its records.
std::vector<WrittenFile> by_folder(std::vector<WrittenFile> files, const Options& options);

// Returns a sample's tokens if labels are a token row, else 1: rates count them.
int64_t tokens_a_sample(const ModelSetup& setup);

// A run's surroundings, which must outlive it.
struct RunContext {
  const Options& options;
  const ModelOrigin& origin;
  const Registry& registry;
  const std::vector<OptimizerDef>& optimizers;
  Communicator& communicator;
  MemoryLedger& ledger;
  const StopSignal* signal = nullptr;  // stops the training; null: none does
  RunFolder* folder = nullptr;         // keeps the training; null: nothing does
};

class PreparedRun {
 public:
  // `configuration`: the effective configuration, on rank 0; if empty, none is printed or saved.
  static Result<std::unique_ptr<PreparedRun>> make(const RunContext& context,
                                                   const std::string& configuration);

  // For a caller who passes batches: `data` holds the first arrays, for training and evaluation.
  static Result<std::unique_ptr<PreparedRun>> make(const RunContext& context, const DataSpec& data,
                                                   const GivenSizes& sizes);

  // Plans again with more micro-batch sizes. Users keep the present plan alive.
  Status plan_for(const GivenSizes& sizes);

  const RunSettings& settings() const { return settings_; }
  const ModelSetup& setup() const { return *setup_; }
  const CompiledRun& plan() const { return *plan_; }
  std::shared_ptr<const CompiledRun> shared_plan() const { return plan_; }
  const std::string& device_notice() const { return chosen_.notice; }  // a line, or empty
  CheckpointStore* store() const { return store_.get(); }              // rank 0 if the run saves
  CheckpointReader* checkpoint() const { return checkpoint_.get(); }   // the one to resume

  // Returns an error if the rank lacks memory or the ranks planned different collectives.
  Status check_executable() const;
  ExecutorOptions executor_options() const;

 private:
  explicit PreparedRun(const RunContext& context) : context_(context) {}

  Status prepare(const std::string& configuration, const DataSpec* data, const GivenSizes* sizes);
  Status weigh_ranks();
  void place_updates();
  Status make_plan();
  Status check_before_planning() const;
  Status check_best() const;
  Status check_accuracy() const;
  Status check_value_metrics() const;
  Status check_rows() const;  // of the data, against the checkpoint's
  void warn_of_warmup() const;
  Status open_checkpoints(bool may_resume);
  Result<std::optional<SavedRun>> examined_run() const;
  void leave_optimizer_out();
  void place_adapter();
  void warn_of_no_folder() const;
  Status agree() const;

  const RunContext context_;
  std::unique_ptr<ModelSetup> setup_;
  RunSettings settings_;
  ChosenDevice chosen_;
  std::shared_ptr<const CompiledRun> plan_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointReader> checkpoint_;
};

// Runs the commands train, plan and eval on one rank, from the options to the end.
//
// The code reads from top to bottom as the stages: prepared, memory, loop, trained file. Rank 0
// prints each stage's tables on stdout; with --json only the result, with --quiet also warnings.
//
// The ledger must outlive the communicator. Collective. Errors: kInput before the first step,
// kFault after. `on_failure` is called before the engine ends: devices that wait for ranks in vain
// may take seconds to give up, and the process may have to end there.
//
// Returns the exit status: 0, or on all ranks that of a signal that has stopped the training.

Result<int> run_session(
    const RunContext& context, const RunTexts& texts,
    const std::function<void(const Status&)>& on_failure = [](const Status&) {});

}  // namespace ofsdp::runtime
