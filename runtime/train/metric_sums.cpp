#include "runtime/train/metric_sums.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ofsdp::runtime {
namespace {

constexpr size_t kClassFacts = 5;     // of a row of ofsdp.MeasureClasses
constexpr size_t kScoresAtOnce = 15;  // and one double with their labels, of three states each

// The share of pairs of a 1 and a 0 that the scores order rightly, ties half: the area under the
// ROC curve (Hanley and McNeil 1982). `scores` is sorted.
std::optional<double> area(const auto& scores) {
  double ones = 0, zeros = 0, ordered = 0;
  for (size_t i = 0; i < scores.size();) {
    double tied_ones = 0, tied_zeros = 0;
    const double score = scores[i].score;
    for (; i < scores.size() && scores[i].score == score; ++i) {
      (scores[i].label > 0 ? tied_ones : tied_zeros) += 1;
    }
    ordered += tied_ones * (zeros + tied_zeros / 2);
    ones += tied_ones;
    zeros += tied_zeros;
  }
  if (ones == 0 || zeros == 0) return std::nullopt;
  return ordered / ones / zeros;
}

std::optional<double> f1(const double* counts, size_t classes) {
  double sum = 0, present = 0;
  for (size_t c = 0; c < classes; ++c) {
    const double* class_counts = counts + 3 * c;  // right, predicted, labelled
    const double both = class_counts[1] + class_counts[2];
    if (both == 0) continue;
    sum += 2 * class_counts[0] / both;
    ++present;
  }
  return present > 0 ? std::optional(sum / present) : std::nullopt;
}

}  // namespace

MetricSums::MetricSums(const MetricPlan& plan, std::span<double> memory) : plan_(plan) {
  static_assert(sizeof(WideSum) == 2 * sizeof(double) && sizeof(Score) == 2 * sizeof(double));
  OFSDP_CHECK(memory.size() >= plan.doubles(), "{} doubles for metrics", memory.size());
  counts_ = memory.first(plan.counts);
  double* at = memory.data() + plan.counts;
  sums_ = {reinterpret_cast<WideSum*>(at), plan.sums};
  at += 2 * plan.sums;
  const auto scores = [&at](int64_t count) {
    const std::span<Score> made(reinterpret_cast<Score*>(at), static_cast<size_t>(count));
    at += 2 * count;
    return made;
  };
  for (const PlannedMetric& m : plan.metrics) {
    own_.push_back(m.spec.kind == MetricKind::kAuc ? scores(plan.own_scores) : std::span<Score>());
    values_.push_back({m.spec.name});
  }
  all_ = scores(plan.all_scores);
  rows_.resize(plan.metrics.size());
  gathered_.resize(static_cast<size_t>(kExchangeMost * plan.ranks));
}

void MetricSums::begin() {
  std::ranges::fill(counts_, 0.0);
  std::ranges::fill(sums_, WideSum{});
  for (const auto& scores : own_) std::ranges::fill(scores, Score{});
  std::ranges::fill(rows_, 0);
}

void MetricSums::add_matches(int64_t right, int64_t kept) {
  for (const PlannedMetric& m : plan_.metrics) {
    if (m.measured >= 0) continue;
    counts(m)[0] += static_cast<double>(right);
    counts(m)[1] += static_cast<double>(kept);
  }
}

Status MetricSums::add(int measured, std::span<const double> rows) {
  for (size_t i = 0; i < plan_.metrics.size(); ++i) {
    const PlannedMetric& m = plan_.metrics[i];
    if (m.measured != measured) continue;
    if (m.spec.kind == MetricKind::kAuc) {
      OFSDP_RETURN_IF_ERROR(add_scores(i, rows));
    } else if (m.classes) {
      add_class_rows(m, rows);
    } else {
      add_value_rows(m, rows);
    }
  }
  return {};
}

void MetricSums::add_class_rows(const PlannedMetric& m, std::span<const double> rows) {
  const double k = m.spec.kind == MetricKind::kTopK ? static_cast<double>(m.spec.k) : 1;
  double* const count = counts(m);
  for (size_t at = 0; at < rows.size(); at += kClassFacts) {
    const double label = rows[at], largest = rows[at + 1], before = rows[at + 2];
    if (label < 0) continue;
    if (m.spec.kind == MetricKind::kF1) {
      count[3 * static_cast<size_t>(label) + 2] += 1;
      if (largest >= 0) count[3 * static_cast<size_t>(largest) + 1] += 1;
      if (largest == label) count[3 * static_cast<size_t>(label)] += 1;
    } else if (m.spec.kind == MetricKind::kPerplexity) {
      count[0] += 1;
      sums(m)->add(rows[at + 3]);
    } else {
      count[0] += before < k ? 1 : 0;
      count[1] += 1;
    }
  }
}

void MetricSums::add_value_rows(const PlannedMetric& m, std::span<const double> rows) {
  const auto width = static_cast<size_t>(m.width);
  counts(m)[0] += static_cast<double>(rows.size() / (2 * width));
  for (size_t i = 0; i < rows.size(); i += 2) {
    const size_t column = i / 2 % width;
    const double label = rows[i + 1], residual = rows[i] - label;
    if (m.spec.kind == MetricKind::kR2) {
      WideSum* const sum = sums(m) + 3 * column;
      sum[0].add(residual * residual);
      sum[1].add(label);
      sum[2].add(label * label);
    } else {
      sums(m)[column].add(m.spec.kind == MetricKind::kMae ? std::abs(residual)
                                                          : residual * residual);
    }
  }
}

Status MetricSums::add_scores(size_t metric, std::span<const double> rows) {
  const PlannedMetric& m = plan_.metrics[metric];
  const auto width = static_cast<size_t>(columns(m));
  const size_t column_rows = static_cast<size_t>(plan_.own_scores) / width;
  const size_t row_size = m.classes ? kClassFacts : 2 * width;
  for (size_t at = 0; at < rows.size(); at += row_size) {
    const auto row = static_cast<size_t>(rows_[metric]++);
    OFSDP_CHECK(row < column_rows, "{} rows of scores were planned", column_rows);
    for (size_t c = 0; c < width; ++c) {
      Score& score = own_[metric][c * column_rows + row];
      score =
          m.classes ? Score{rows[at + 4], rows[at]} : Score{rows[at + 2 * c], rows[at + 2 * c + 1]};
      const bool known = score.label == 0 || score.label == 1 || (m.classes && score.label == -1);
      if (known) continue;
      return input_error("--eval-metrics {}: expected labels of 0 and 1, found {}", m.spec.name,
                         score.label);
    }
  }
  return {};
}

Status MetricSums::exchange_counts(Communicator& communicator, int64_t step) {
  const auto ranks = static_cast<size_t>(communicator.size());
  for (size_t first = 0; first < counts_.size(); first += kExchangeMost) {
    const auto mine =
        counts_.subspan(first, std::min<size_t>(kExchangeMost, counts_.size() - first));
    const auto all = std::span(gathered_).first(mine.size() * ranks);
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, {"exchange of metrics", -1, step}));
    std::ranges::fill(mine, 0.0);
    for (size_t i = 0; i < all.size(); ++i) mine[i % mine.size()] += all[i];
  }
  return {};
}

Status MetricSums::exchange_sums(Communicator& communicator, int64_t step) {
  constexpr size_t kMost = kExchangeMost / 2;
  const auto ranks = static_cast<size_t>(communicator.size());
  for (size_t first = 0; first < sums_.size(); first += kMost) {
    const auto mine = sums_.subspan(first, std::min(kMost, sums_.size() - first));
    const auto all = std::span(gathered_).first(2 * mine.size() * ranks);
    OFSDP_RETURN_IF_ERROR(communicator.exchange({&mine.data()->high, 2 * mine.size()}, all,
                                                {"exchange of metrics", -1, step}));
    std::ranges::fill(mine, WideSum{});
    for (size_t i = 0; i < all.size() / 2; ++i) {
      mine[i % mine.size()].add(WideSum{all[2 * i], all[2 * i + 1]});
    }
  }
  return {};
}

// Fills `all_` with what has a label.
Status MetricSums::exchange_scores(Communicator& communicator, std::span<const Score> mine,
                                   int64_t step) {
  constexpr size_t kNumbers = kScoresAtOnce + 1;
  static_assert(kNumbers <= kExchangeMost);
  const auto all = std::span(gathered_).first(kNumbers * static_cast<size_t>(communicator.size()));
  all_count_ = 0;
  for (size_t first = 0; first < mine.size(); first += kScoresAtOnce) {
    std::array<double, kNumbers> sent{};
    double state = 1;  // of three: no label, 0, 1
    for (size_t i = first; i < std::min(first + kScoresAtOnce, mine.size()); ++i, state *= 3) {
      sent[i - first] = mine[i].score;
      sent[kScoresAtOnce] += state * (mine[i].label + 1);
    }
    OFSDP_RETURN_IF_ERROR(communicator.exchange(sent, all, {"exchange of scores", -1, step}));
    for (const double* rank = all.data(); rank != all.data() + all.size(); rank += kNumbers) {
      auto labels = static_cast<int64_t>(rank[kScoresAtOnce]);
      for (size_t i = 0; i < kScoresAtOnce; ++i, labels /= 3) {
        if (labels % 3 != 0) all_[all_count_++] = {rank[i], static_cast<double>(labels % 3 - 1)};
      }
    }
  }
  return {};
}

Result<std::optional<double>> MetricSums::auc(size_t metric, Communicator& communicator,
                                              int64_t step) {
  const auto width = static_cast<size_t>(columns(plan_.metrics[metric]));
  const size_t column_rows = static_cast<size_t>(plan_.own_scores) / width;
  std::optional<double> sum = 0.0;
  for (size_t c = 0; c < width; ++c) {
    const auto mine = own_[metric].subspan(c * column_rows, column_rows);
    OFSDP_RETURN_IF_ERROR(exchange_scores(communicator, mine, step));
    const auto scores = all_.first(all_count_);
    std::ranges::sort(scores, {}, &Score::score);
    const std::optional<double> column = area(scores);
    sum = sum && column ? std::optional(*sum + *column) : std::nullopt;
  }
  return sum ? std::optional(*sum / static_cast<double>(width)) : sum;
}

Status MetricSums::agree(Communicator& communicator, int64_t step) {
  OFSDP_RETURN_IF_ERROR(exchange_counts(communicator, step));
  OFSDP_RETURN_IF_ERROR(exchange_sums(communicator, step));
  for (size_t i = 0; i < values_.size(); ++i) {
    const PlannedMetric& m = plan_.metrics[i];
    if (m.spec.kind == MetricKind::kAuc) {
      OFSDP_ASSIGN_OR_RETURN(values_[i].value, auc(i, communicator, step));
    } else {
      values_[i].value = value_of(m);
    }
  }
  return {};
}

std::optional<double> MetricSums::value_of(const PlannedMetric& m) const {
  const double* const count = counts(m);
  switch (m.spec.kind) {
    case MetricKind::kF1:
      return f1(count, static_cast<size_t>(m.width));
    case MetricKind::kPerplexity:
      if (count[0] == 0) return std::nullopt;
      return std::exp(sums(m)->value() / count[0]);
    case MetricKind::kAccuracy:
    case MetricKind::kTopK:
      if (count[1] == 0) return std::nullopt;
      return count[0] / count[1];
    default:
      return count[0] == 0 ? std::nullopt : mean_over_columns(m);
  }
}

std::optional<double> MetricSums::mean_over_columns(const PlannedMetric& m) const {
  if (m.spec.kind == MetricKind::kR2 && counts(m)[0] < 2) return std::nullopt;
  double sum = 0;
  for (size_t c = 0; c < static_cast<size_t>(m.width); ++c) sum += column_value(m, c);
  return sum / static_cast<double>(m.width);
}

double MetricSums::column_value(const PlannedMetric& m, size_t column) const {
  const double rows = counts(m)[0];
  if (m.spec.kind == MetricKind::kMae) return sums(m)[column].value() / rows;
  if (m.spec.kind == MetricKind::kRmse) return std::sqrt(sums(m)[column].value() / rows);
  const WideSum* const sum = sums(m) + 3 * column;
  const double residuals = sum[0].value();
  const double distances = centered(sum[2], sum[1], rows);
  if (distances > 0) return 1 - residuals / distances;
  return residuals == 0 ? 1 : 0;  // labels that are all the same
}

}  // namespace ofsdp::runtime
