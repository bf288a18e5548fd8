// MetricPlan: numbers that the metrics of an evaluation keep while it goes on, decided before
// anything runs: sums of each metric and, for auc, every score. All of it lies in the region
// `metrics` of the rank's memory, as doubles.
//
// [Note: exact metrics] An evaluation ends with exchanges of these numbers, in chunks, and each
// rank adds them in the order of ranks. Counts are whole numbers, exact in double. Other sums are
// pairs of doubles (Dekker 1971) that hold twice the digits, so that neither the number of ranks
// nor a mean far from zero (r2) shows in the result. auc sorts the scores of all ranks.
//
//   counts  of each metric, one after the other; then sums, two doubles each; then scores: those of
//           this rank (score, label), then those of all ranks.
//
// Errors: kInput, where a metric does not fit the prediction.
#pragma once

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

struct PlannedMetric {
  MetricSpec spec;
  int measured = -1;     // index in Graph::measured; -1: accuracy by Graph::matches
  bool classes = false;  // of Measured, like the next
  int64_t width = 0;
  size_t count = 0;  // the first of its counts
  size_t counts = 0;
  size_t sum = 0;  // the first of its sums
  size_t sums = 0;
};

struct MetricPlan {
  std::vector<PlannedMetric> metrics;
  int ranks = 1;
  size_t counts = 0;
  size_t sums = 0;
  int64_t own_scores = 0;    // most of one rank, of one auc, over its columns
  int64_t all_scores = 0;    // of a column, all ranks together
  size_t score_metrics = 0;  // how many auc there are

  size_t doubles() const {
    return counts + 2 * sums + 2 * static_cast<size_t>(own_scores) * score_metrics +
           2 * static_cast<size_t>(all_scores);
  }
  size_t bytes() const { return doubles() * sizeof(double); }
};

// The predictions whose rows are needed, each once; empty: Graph::matches is enough.
std::vector<MeasureSpec> measures_of(const std::vector<MetricSpec>& metrics);

// `graph`: the evaluation graph of a micro-batch of `batch` samples. `samples`: of the whole
// evaluation; 0: there is none, and the metrics are only checked.
Result<MetricPlan> plan_metrics(const std::vector<MetricSpec>& metrics, const Graph& graph,
                                int64_t batch, int64_t samples, int ranks);

}  // namespace ofsdp::runtime
