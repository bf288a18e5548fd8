// MetricLayout: the doubles that an evaluation's metrics accumulate, in the region `metrics` of the
// rank's memory. In this order:
//
//   counts  metric by metric
//   sums    metric by metric, two doubles each
//   scores  only for auc: pairs (score, label), this rank's, then all ranks'
//
// [Note: exact metrics] At the end of an evaluation the ranks exchange these numbers in chunks and
// add them in rank order. Counts are integers, exact in double. A sum is a pair of doubles with
// twice the digits (Dekker 1971), so neither the number of ranks nor a mean far from zero (r2)
// changes the result. auc sorts the scores of all ranks.
#pragma once

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

struct PlannedMetric {
  MetricSpec spec;
  int measured = -1;     // index in Graph::measured; -1: accuracy by Graph::matches
  bool classes = false;  // Measured::classes and width
  int64_t width = 0;
  double threshold = 0;  // Measured::threshold
  size_t count = 0;      // index of the first count
  size_t counts = 0;
  size_t sum = 0;  // index of the first sum
  size_t sums = 0;
};

struct MetricLayout {
  std::vector<PlannedMetric> metrics;
  int ranks = 1;
  size_t counts = 0;
  size_t sums = 0;
  int64_t own_scores = 0;    // of one auc on one rank, at most: all columns
  int64_t all_scores = 0;    // of one column, all ranks
  size_t score_metrics = 0;  // number of auc metrics

  size_t doubles() const {
    return counts + 2 * sums + 2 * static_cast<size_t>(own_scores) * score_metrics +
           2 * static_cast<size_t>(all_scores);
  }
  size_t bytes() const { return doubles() * sizeof(double); }
};

// Returns whether the loss itself counts the metric (Graph::matches).
bool is_plain_accuracy(const MetricSpec& metric);

// Returns each prediction whose rows the metrics need, once; empty if Graph::matches suffices.
std::vector<MeasureSpec> measures_of(const std::vector<MetricSpec>& metrics);

// `graph`: the evaluation graph of `batch` samples. `samples`: at least what a rank has of the
// evaluation, the same on all ranks; 0 only checks the metrics. Returns kInput if a metric does not
// fit the prediction.
Result<MetricLayout> lay_out_metrics(const std::vector<MetricSpec>& metrics, const Graph& graph,
                                     int64_t batch, int64_t samples, int ranks);

}  // namespace ofsdp::runtime
