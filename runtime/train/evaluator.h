// Evaluator: loss and accuracy over the evaluation data, with all ranks sharing the samples.
//
// Training switches are off (the programs were compiled so). The loss is the mean over kept labels
// (or samples), accuracy the share of kept labels whose first largest class is right.
//
// Ownership: borrows state, plan, setup and communicator. Threads: one; `run` is collective. No
// allocation in `run`. Errors: as CpuEngine and Loader; kFault of a loss that is NaN or infinite.
#pragma once

#include "runtime/data/loader.h"
#include "runtime/log/metrics.h"
#include "runtime/state/run_state.h"

namespace ofsdp::runtime {

class Evaluator {
 public:
  Evaluator(const RunPlan& plan, const ModelSetup& setup, RunState& state,
            Communicator& communicator);

  Result<EvalRow> run(int64_t step, int64_t epoch);

 private:
  const RunPlan& plan_;
  RunState& state_;
  Communicator& communicator_;
  Loader loader_;
};

// What a micro-batch counts in the mean, as the loader's rule.
LabelRule label_rule(const LossCount& count, const RowSource& rows);

}  // namespace ofsdp::runtime
