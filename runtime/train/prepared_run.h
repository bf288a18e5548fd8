// PreparedRun: a run that is ready to execute: model and data are open, settings and starting point
// resolved, the device chosen, everything planned, and the plan agreed on by all ranks.
//
// The code reads from top to bottom as the stages. run_session executes it for a command,
// BatchTrainer for a caller of the library.
//
// Borrows RunContext. Collective. Errors: kInput before anything is allocated for the run; those of
// an exchange.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/checkpoint_store.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"
#include "runtime/plan/device_choice.h"
#include "runtime/plan/run_plan.h"
#include "runtime/state/rank_state.h"
#include "runtime/train/run_facts.h"

namespace ofsdp::runtime {

// The surroundings of a run, which must outlive it.
struct RunContext {
  const Options& options;
  const ModelOrigin& origin;
  const Registry& registry;
  const std::vector<OptimizerDef>& optimizers;
  Communicator& communicator;
  MemoryLedger& ledger;
};

class PreparedRun {
 public:
  // `configuration`: the effective configuration, on rank 0; if empty, none is printed or saved.
  static Result<std::unique_ptr<PreparedRun>> make(const RunContext& context,
                                                   const std::string& configuration);

  // For a caller who passes batches: `data` holds the first arrays, for training and evaluation.
  static Result<std::unique_ptr<PreparedRun>> make(const RunContext& context, const DataSpec& data,
                                                   const GivenSizes& sizes);

  // Plans again with more sizes of micro-batches. Users of the present plan keep it alive.
  Status plan_for(const GivenSizes& sizes);

  const RunSettings& settings() const { return settings_; }
  const ModelSetup& setup() const { return *setup_; }
  const RunPlan& plan() const { return *plan_; }
  std::shared_ptr<const RunPlan> shared_plan() const { return plan_; }
  const std::string& device_notice() const { return chosen_.notice; }  // a line, or empty
  CheckpointStore* store() const { return store_.get(); }              // rank 0 of a run that saves
  CheckpointReader* checkpoint() const { return checkpoint_.get(); }   // the one to resume

  // Returns an error if the rank lacks memory or the ranks planned different collectives.
  Status check_executable() const;
  ExecutorOptions executor_options() const;

 private:
  explicit PreparedRun(const RunContext& context) : context_(context) {}

  Status prepare(const std::string& configuration, const DataSpec* data, const GivenSizes* sizes);
  Status make_plan();
  Status check_before_planning() const;
  Status check_best() const;
  Status open_checkpoints();
  Result<SavedRun> saved_run() const;
  void take_weights_alone();
  void warn_of_no_folder() const;
  Status agree() const;

  const RunContext context_;
  std::unique_ptr<ModelSetup> setup_;
  RunSettings settings_;
  ChosenDevice chosen_;
  std::shared_ptr<const RunPlan> plan_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointReader> checkpoint_;
};

// Runs the commands train, plan and eval on one rank, from the options to the end.
//
// The code reads from top to bottom as the stages: prepared, memory, loop, trained file. Rank 0
// prints the tables of each stage on stdout.
//
// The ledger must outlive the communicator. Collective. Errors: kInput before the first step,
// kFault after. `on_failure` is called before the engine ends: devices that wait for ranks in vain
// may take seconds to give up, and the process may have to end there.

Status run_session(
    const RunContext& context, const RunTexts& texts,
    const std::function<void(const Status&)>& on_failure = [](const Status&) {});

}  // namespace ofsdp::runtime
