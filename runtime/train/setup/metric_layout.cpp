#include "runtime/train/setup/metric_layout.h"

#include <algorithm>

#include "kernels/base/status.h"

namespace ofsdp::runtime {
namespace {

const char* kind_of_rows(const PlannedMetric& m) {
  return m.classes ? "integer labels of classes" : "numbers";
}

Status check(const PlannedMetric& m, bool binary) {
  const MetricTraits& traits = metric_traits(m.spec.kind);
  const MetricRows rows = traits.rows;
  if (rows == MetricRows::kSequences) return {};
  const bool of_values = rows == MetricRows::kValues;
  if (rows == MetricRows::kScores) {
    if (m.classes ? m.width == 2 : binary) return {};
    return input_error("--eval-metrics {}: expected two classes, bce_with_logits or bce, found {}",
                       m.spec.name,
                       m.classes ? format_text("{} classes", m.width) : "labels that are numbers");
  }
  if (traits.of_labels && !m.classes && binary) return {};
  OFSDP_REJECT_IF(of_values == m.classes, "--eval-metrics {}: expected {}, found {}", m.spec.name,
                  of_values          ? "labels that are numbers"
                  : traits.of_labels ? "integer labels of classes, bce_with_logits or bce"
                                     : "integer labels of classes",
                  kind_of_rows(m));
  OFSDP_REJECT_IF(m.spec.kind == MetricKind::kTopK && m.spec.k > m.width,
                  "--eval-metrics {}: expected at most the {} classes of the prediction, found {}",
                  m.spec.name, m.width, m.spec.k);
  return {};
}

}  // namespace

bool is_plain_accuracy(const MetricSpec& metric) {
  return metric.kind == MetricKind::kAccuracy && metric.prediction.empty();
}

std::vector<MeasureSpec> measures_of(const std::vector<MetricSpec>& metrics) {
  std::vector<MeasureSpec> measures;
  for (const MetricSpec& metric : metrics) {
    if (is_plain_accuracy(metric)) continue;
    auto found = std::ranges::find(measures, metric.prediction, &MeasureSpec::prediction);
    if (found == measures.end()) {
      measures.push_back({metric.name, metric.prediction});
      found = measures.end() - 1;
    }
    const MetricTraits& traits = metric_traits(metric.kind);
    found->likelihood = found->likelihood || traits.likelihood;
    found->sequences = found->sequences || traits.rows == MetricRows::kSequences;
    if (metric.kind == MetricKind::kWer) found->space = metric.k;
  }
  return measures;
}

Result<MetricLayout> lay_out_metrics(const std::vector<MetricSpec>& metrics, const Graph& graph,
                                     int64_t batch, int64_t samples, int ranks) {
  const std::vector<MeasureSpec> measures = measures_of(metrics);
  MetricLayout plan;
  plan.ranks = ranks;
  for (const MetricSpec& metric : metrics) {
    PlannedMetric m{.spec = metric};
    const MetricTraits& traits = metric_traits(metric.kind);
    if (!is_plain_accuracy(metric)) {
      const auto found = std::ranges::find(measures, metric.prediction, &MeasureSpec::prediction);
      m.measured = static_cast<int>(found - measures.begin());
      const Measured& rows = graph.measured.at(static_cast<size_t>(m.measured));
      m.classes = rows.classes;
      m.width = rows.width;
      m.threshold = rows.threshold.value_or(0);
      OFSDP_RETURN_IF_ERROR(check(m, rows.threshold.has_value()));
      if (traits.rows == MetricRows::kScores) {
        const int64_t a_sample = graph.value(rows.rows).desc.shape[0] / batch;
        const int64_t columns = m.classes ? 1 : m.width;
        const int64_t own = samples * a_sample * columns;
        plan.own_scores = std::max(plan.own_scores, own);
        plan.all_scores = std::max(plan.all_scores, own / columns * ranks);
        ++plan.score_metrics;
      }
    }
    const auto width = static_cast<size_t>(m.width);
    m.counts = traits.counts + traits.counts_each * width;
    m.sums = traits.sums + traits.sums_each * width;
    m.count = plan.counts;
    m.sum = plan.sums;
    plan.counts += m.counts;
    plan.sums += m.sums;
    plan.metrics.push_back(std::move(m));
  }
  return plan;
}

}  // namespace ofsdp::runtime
