// Evaluator computes loss and metrics over the evaluation data; all ranks share the samples.
//
// The programs are compiled without training switches. With --ema the average replaces the
// parameters during the evaluation, unless --ema-use is off. Each evaluation begins with rank 0's
// running statistics on every rank, as in DistributedDataParallel: the written file has these, and
// each rank has seen other rows. Nothing that is trained reads them.
//
// The loss is the mean over kept labels (or samples), or the sum over the evaluation data
// (importer/passes/loss.h). If there are several losses, one without a kept label is left out; if
// no loss has a label, the loss is NaN. A row names the first rank with a loss that is NaN or
// infinite. MetricSums computes the metrics.
//
// Borrows state, communicator and `progress`, which is told of every micro-batch; owns a row's
// metrics. `run` is collective and does not allocate.
// Errors: as CpuEngine and Loader; kFault if a loss is NaN and AtNan::kEnds.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "runtime/data/loader.h"
#include "runtime/log/metrics.h"
#include "runtime/log/screen.h"
#include "runtime/train/rank_state.h"
#include "runtime/train/setup/metric_layout.h"

namespace ofsdp::runtime {

// RankNumbers exchanges any number of doubles between ranks; one Communicator exchange takes at
// most kMaxExchange. `exchange` is collective, acts as a barrier and does not allocate.
class RankNumbers {
 public:
  RankNumbers(int ranks, size_t count)
      : mine_(count),
        piece_(static_cast<size_t>(ranks) * kMaxExchange),
        all_(static_cast<size_t>(ranks) * count) {}

  std::span<double> mine() { return mine_; }  // set these before `exchange`
  // REQUIRES: `exchange` has returned. Returns the numbers from `rank`.
  std::span<const double> of(size_t rank) const {
    return std::span(all_).subspan(rank * mine_.size(), mine_.size());
  }
  size_t ranks() const { return all_.size() / mine_.size(); }

  Status exchange(Communicator& communicator, const CollectiveSite& site) {
    for (size_t first = 0; first < mine_.size(); first += kMaxExchange) {
      const size_t count = std::min<size_t>(kMaxExchange, mine_.size() - first);
      const auto all = std::span(piece_).first(count * ranks());
      OFSDP_RETURN_IF_ERROR(
          communicator.exchange(std::span(mine_).subspan(first, count), all, site));
      for (size_t r = 0; r < ranks(); ++r) {
        std::ranges::copy(all.subspan(r * count, count),
                          all_.begin() + static_cast<ptrdiff_t>(r * mine_.size() + first));
      }
    }
    return {};
  }

 private:
  std::vector<double> mine_, piece_, all_;  // this rank's; all ranks' in one exchange; all ranks'
};

// WideSum: a sum in two doubles, about 106 bits, by error-free transformations (Dekker 1971; Knuth,
// The Art of Computer Programming 2, 4.2.2). Infinity and NaN stay in `high`.
struct WideSum {
  double high = 0, low = 0;

  void add(double value) {
    const double sum = high + value;
    const double part = sum - high;
    low += (high - (sum - part)) + (value - part);
    settle(sum);
  }
  void add(const WideSum& other) {
    add(other.high);
    add(other.low);
  }
  double value() const { return high + low; }

 private:
  void settle(double sum) {
    high = sum + low;
    low = low - (high - sum);
    if (high - high != 0) low = 0;  // infinite or NaN
  }
};

// Returns the summed squared distances from the mean, given the sums over `count` squares and over
// the numbers themselves.
inline double centered(const WideSum& squares, const WideSum& sum, double count) {
  const double product = sum.high * sum.high;
  const double rest = std::fma(sum.high, sum.high, -product) + 2 * sum.high * sum.low;
  const double quotient = product / count;
  WideSum result = squares;
  result.add(-quotient);
  result.add(-(std::fma(-quotient, count, product) + rest) / count);
  return result.value();
}

// MetricSums: one evaluation's metrics over all ranks' rows, as scikit-learn defines them.
//
// Call `begin`, then `add` for each micro-batch (with the rows of Graph::measured, in order), then
// `agree`, which is collective, then `values`, equal on every rank. Ignored labels are left out.
// topK counts a label if fewer than K classes score higher; f1 is the mean over classes that occur
// in labels or predictions, or over columns of labels 0 and 1; f1_micro takes all of these as one;
// auc ranks tied scores by their mean; with several columns rmse, mae, r2 and auc are the mean over
// columns. cer and wer are edit distances divided by the number of labels, or of words. An
// undefined metric is null.
//
// Borrows plan and memory (MetricLayout::doubles). Allocates only in `make`. Returns the exchange's
// errors; kInput if a label for auc is neither 0 nor 1.
class MetricSums {
 public:
  MetricSums(const MetricLayout& plan, std::span<double> memory);

  void begin();
  // Adds the matches and the kept labels that the loss itself has counted.
  void add_matches(int64_t right, int64_t kept);
  Status add(int measured, std::span<const double> rows);
  Status agree(Communicator& communicator, int64_t step);
  // In the plan's order.
  std::span<const MetricValue> values() const { return values_; }

 private:
  struct Score {
    double score = 0;
    double label = -1;  // 0 or 1; -1: none
  };

  void add_class_rows(const PlannedMetric& m, std::span<const double> rows);
  void add_sequence_rows(const PlannedMetric& m, std::span<const double> rows);
  void add_value_rows(const PlannedMetric& m, std::span<const double> rows);
  Status add_label_rows(const PlannedMetric& m, std::span<const double> rows);
  Status add_scores(size_t metric, std::span<const double> rows);
  Status exchange_counts(Communicator& communicator, int64_t step);
  Status exchange_sums(Communicator& communicator, int64_t step);
  Status exchange_scores(Communicator& communicator, std::span<const Score> mine, int64_t step);
  Result<std::optional<double>> auc(size_t metric, Communicator& communicator, int64_t step);
  std::optional<double> value_of(const PlannedMetric& m) const;
  std::optional<double> mean_over_columns(const PlannedMetric& m) const;
  double column_value(const PlannedMetric& m, size_t column) const;

  int64_t columns(const PlannedMetric& m) const { return m.classes ? 1 : m.width; }
  double* counts(const PlannedMetric& m) const { return counts_.data() + m.count; }
  WideSum* sums(const PlannedMetric& m) const { return sums_.data() + m.sum; }

  const MetricLayout& plan_;
  std::span<double> counts_;
  std::span<WideSum> sums_;
  std::vector<std::span<Score>> own_;  // one a metric; empty except for auc
  std::vector<int64_t> rows_;          // one a metric: how many rows own_ has in each column
  std::span<Score> all_;
  size_t all_count_ = 0;
  std::vector<double> gathered_;
  std::vector<MetricValue> values_;
};

// A micro-batch of an evaluation and its losses, one for each --loss: the mean over the kept labels
// or samples, or the sum. No samples: none was evaluated.
struct EvaluatedBatch {
  std::vector<int64_t> samples;
  std::vector<double> losses;  // NaN: no label counts
};

// kGoesOn: a training run keeps its weights. kEnds: an error names the first bad node.
enum class AtNan { kGoesOn, kEnds };

class Evaluator {
 public:
  // `sampler` must be for the setup's evaluation data.
  Evaluator(RankState& state, Communicator& communicator, const Sampler& sampler, AtNan at_nan);

  Result<EvalRow> run(int64_t step, int64_t epoch, Progress* progress = nullptr);
  // Names the losses and metrics that the labels of the last evaluation do not define.
  std::vector<std::string> undefined(const EvalRow& row) const;
  // "loss is infinite (rank 1)": the row's numbers that are NaN or infinite.
  std::vector<std::string> not_finite(const EvalRow& row) const;
  AtNan at_nan() const { return at_nan_; }
  // Returns this rank's first micro-batch in the last evaluation.
  const EvaluatedBatch& first_batch() const { return first_batch_; }

 private:
  Result<EvalRow> pass(int64_t step, int64_t epoch, Progress* progress);
  Status take_statistics(int64_t step);
  Status swap_average(int64_t step);
  Status add(const BoundProgram& program, const MicroResult& result);
  void keep_first(const Batch& batch, const MicroResult& result);
  double loss_of_all();
  int bad_rank() const;

  RankState& state_;
  const Sampler& sampler_;
  Communicator& communicator_;
  Loader loader_;
  MetricSums metrics_;
  std::vector<std::span<float>> statistics_;  // running statistics of which ranks have their own
  std::vector<double> pieces_;                // all ranks' part of them, in one exchange
  RankNumbers numbers_;                       // each loss's sum and count
  std::vector<MetricValue> losses_;
  EvaluatedBatch first_batch_;
  bool matches_ = false;  // the programs count matches
  AtNan at_nan_;
};

// Warn on stderr if the row has such values; return whether it has.
bool warn_of_undefined(const Evaluator& evaluator, const EvalRow& row);
bool warn_of_not_finite(const Evaluator& evaluator, const EvalRow& row);

// Returns the rules by which a micro-batch counts in each loss's mean.
std::vector<LabelRule> label_rules(std::span<const LossCount> counts, const RowSource& rows);

// Returns each loss's name in rows: its prediction, with "#2" if it occurs again. Empty if --loss
// does not name them.
std::vector<MetricValue> reported_losses(const ModelSetup& setup);

}  // namespace ofsdp::runtime
