// Evaluator: loss and metrics over the evaluation data, with all ranks sharing the samples.
//
// Training switches are off (the programs were compiled so). With --ema the average takes the
// place of the parameters meanwhile, unless --ema-use is off. The loss is the mean over kept
// labels (or samples), or the sum over the evaluation data (importer/passes/loss.h). If there are
// several, one without a kept label is left out; without any label the loss is NaN. metric_sums.h
// has the metrics.
//
// Ownership: borrows state and communicator; a row's metrics are the evaluator's. Threads: one;
// `run` is collective. No allocation in `run`. Errors: as CpuEngine and Loader; kFault of a loss
// that is NaN or infinite.
#pragma once

#include "runtime/data/loader.h"
#include "runtime/log/metrics.h"
#include "runtime/state/rank_state.h"
#include "runtime/train/metric_sums.h"
#include "runtime/train/rank_numbers.h"

namespace ofsdp::runtime {

class Evaluator {
 public:
  // `sampler`: of the evaluation data, which are the setup's.
  Evaluator(RankState& state, Communicator& communicator, const Sampler& sampler);

  Result<EvalRow> run(int64_t step, int64_t epoch);
  // Returns the names of losses and metrics that the data of the last evaluation do not define.
  std::vector<std::string> undefined(const EvalRow& row) const;

 private:
  Result<EvalRow> pass(int64_t step, int64_t epoch);
  Status swap_average(int64_t step);
  Status add(const BoundProgram& program, const MicroResult& result);
  double loss_of_all();

  RankState& state_;
  const Sampler& sampler_;
  Communicator& communicator_;
  Loader loader_;
  MetricSums metrics_;
  RankNumbers numbers_;  // of each loss: its sum and its count
  std::vector<MetricValue> losses_;
  bool matches_ = false;  // right answers are counted
};

// Warns on stderr if the row has undefined values.
void warn_of_undefined(const Evaluator& evaluator, const EvalRow& row);

// The loader's rules for what a micro-batch counts in the mean of each loss.
std::vector<LabelRule> label_rules(const std::vector<LossCount>& counts, const RowSource& rows);

// Names that rows have for each loss: its prediction, a later one of the same with "#2". Empty
// where --loss does not say them.
std::vector<MetricValue> reported_losses(const ModelSetup& setup);

}  // namespace ofsdp::runtime
