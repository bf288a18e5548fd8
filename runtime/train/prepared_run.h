// PreparedRun: a run that is ready to execute: model and data are open, its settings and the point
// where it starts resolved, the device chosen, everything planned and the plan agreed on.
//
// Reads from top to bottom as the stages. Session (session.h) executes it as a command says;
// BatchTrainer (batch_trainer.h) as a caller of the library does.
//
// Ownership: owns all but what RunContext borrows. Threads: one. Collective. Errors: kInput, all
// before anything is allocated for the run; those of an exchange.
#pragma once

#include <array>
#include <memory>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/checkpoint_store.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"
#include "runtime/plan/device_choice.h"
#include "runtime/plan/run_plan.h"
#include "runtime/state/rank_state.h"

namespace ofsdp::runtime {

// The surroundings of a run; all of it outlives the run.
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
  // `configuration`: the effective configuration, of rank 0; empty: none is printed or saved.
  static Result<std::unique_ptr<PreparedRun>> make(const RunContext& context,
                                                   const std::string& configuration);

  // For a caller who brings the batches: `data` are its first arrays, training and evaluation.
  static Result<std::unique_ptr<PreparedRun>> make(const RunContext& context, const DataSpec& data,
                                                   const GivenSizes& sizes);

  // Plans again for micro-batches of more sizes. Whoever uses the plan so far keeps it.
  Status plan_for(const GivenSizes& sizes);

  const RunSettings& settings() const { return settings_; }
  const ModelSetup& setup() const { return *setup_; }
  const RunPlan& plan() const { return *plan_; }
  std::shared_ptr<const RunPlan> shared_plan() const { return plan_; }
  const std::string& device_notice() const { return chosen_.notice; }  // a line, or empty
  CheckpointStore* store() const { return store_.get(); }             // rank 0, of a run that saves
  CheckpointReader* checkpoint() const { return checkpoint_.get(); }  // that it goes on from

  // Checks the rank's memory and that all ranks have planned the same collectives.
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

}  // namespace ofsdp::runtime
