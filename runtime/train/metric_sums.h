// MetricSums: the metrics of one evaluation, as scikit-learn defines them, over all ranks' rows.
//
// `begin`, then `add` for each micro-batch (the rows of Graph::measured, in its order), then
// `agree`, which is collective, then `values`, the same on every rank. Ignored labels are left out.
// topK counts a label before which fewer than K classes stand; f1 is the mean over the classes that
// occur in labels or predictions; auc ranks tied scores by their mean; rmse, mae, r2 and auc of
// several columns are the mean over columns. What no row defines is null.
//
// Ownership: borrows plan and memory (MetricPlan::doubles). Threads: one. No allocation after make.
// Errors: those of the exchange; kInput of an auc label that is neither 0 nor 1.
#pragma once

#include "fsdp/comm/communicator.h"
#include "runtime/log/metrics.h"
#include "runtime/plan/metric_plan.h"
#include "runtime/train/wide_sum.h"

namespace ofsdp::runtime {

class MetricSums {
 public:
  MetricSums(const MetricPlan& plan, std::span<double> memory);

  void begin();
  // Right answers and kept labels of the loss's own prediction.
  void add_matches(int64_t right, int64_t kept);
  Status add(int measured, std::span<const double> rows);
  Status agree(Communicator& communicator, int64_t step);
  // In the order of the plan.
  std::span<const MetricValue> values() const { return values_; }

 private:
  struct Score {
    double score = 0;
    double label = -1;  // 0 or 1; -1: none
  };

  void add_class_rows(const PlannedMetric& m, std::span<const double> rows);
  void add_value_rows(const PlannedMetric& m, std::span<const double> rows);
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

  const MetricPlan& plan_;
  std::span<double> counts_;
  std::span<WideSum> sums_;
  std::vector<std::span<Score>> own_;  // per metric; none but those of auc
  std::vector<int64_t> rows_;          // per metric: of own_, in each column
  std::span<Score> all_;
  size_t all_count_ = 0;
  std::vector<double> gathered_;
  std::vector<MetricValue> values_;
};

}  // namespace ofsdp::runtime
