// Evaluation metrics against plain loops over all rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/train/evaluator.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace metric_sums_test {

struct ClassRow {
  int label = -1;  // -1: ignored
  int largest = 0;
  int before = 0;
  double loss = 0;
  double margin = 0;
};

PlannedMetric planned(MetricKind kind, bool classes, int64_t width, size_t counts, size_t sums) {
  PlannedMetric m{.spec = {.kind = kind, .k = 2, .name = "m"}};
  m.measured = 0;
  m.classes = classes;
  m.width = width;
  m.counts = counts;
  m.sums = sums;
  return m;
}

// The value of one metric; rows are added in two parts.
std::optional<double> value_of(const PlannedMetric& metric, const std::vector<double>& rows,
                               size_t row_size, int64_t scores = 0) {
  MetricLayout plan;
  plan.metrics = {metric};
  plan.counts = metric.counts;
  plan.sums = metric.sums;
  plan.own_scores = scores;
  plan.all_scores = scores;
  plan.score_metrics = scores > 0 ? 1 : 0;
  std::vector<double> memory(plan.doubles());
  MetricSums sums(plan, memory);
  const auto communicator = make_self_communicator();
  std::optional<double> first;
  for (int again = 0; again < 2; ++again) {
    sums.begin();
    const size_t half = rows.size() / row_size / 2 * row_size;
    EXPECT_TRUE(sums.add(0, std::span(rows).first(half)).ok());
    EXPECT_TRUE(sums.add(0, std::span(rows).subspan(half)).ok());
    EXPECT_TRUE(sums.agree(*communicator, 1).ok());
    if (again == 0) first = sums.values()[0].value;
  }
  EXPECT_EQ(sums.values()[0].value, first) << "a second evaluation begins anew";
  return first;
}

std::vector<ClassRow> class_rows() {
  std::vector<ClassRow> rows;
  for (int i = 0; i < 37; ++i) {
    const int label = i % 5 == 3 ? -1 : i * i % 4;
    rows.push_back({label, i * 3 % 4, i % 3, 0.1 + i % 7, static_cast<double>(i * 5 % 9 - 4)});
  }
  return rows;
}

std::vector<double> facts(const std::vector<ClassRow>& rows) {
  std::vector<double> all;
  for (const ClassRow& r : rows) {
    for (const double x : {double(r.label), double(r.largest), double(r.before), r.loss, r.margin})
      all.push_back(x);
  }
  return all;
}

TEST(MetricSums, CountsOfClassesLeaveIgnoredLabelsOut) {
  const auto rows = class_rows();
  double kept = 0, top = 0, loss = 0, f1 = 0, present = 0;
  for (const ClassRow& r : rows) {
    if (r.label < 0) continue;
    ++kept;
    top += r.before < 2 ? 1 : 0;
    loss += r.loss;
  }
  for (int c = 0; c < 6; ++c) {  // two classes occur nowhere
    double right = 0, predicted = 0, labelled = 0;
    for (const ClassRow& r : rows) {
      if (r.label < 0) continue;
      right += r.label == c && r.largest == c ? 1 : 0;
      predicted += r.largest == c ? 1 : 0;
      labelled += r.label == c ? 1 : 0;
    }
    if (predicted + labelled == 0) continue;
    f1 += 2 * right / (predicted + labelled);
    ++present;
  }
  const auto all = facts(rows);
  EXPECT_NEAR(*value_of(planned(MetricKind::kTopK, true, 6, 2, 0), all, 5), top / kept, 1e-12);
  EXPECT_NEAR(*value_of(planned(MetricKind::kF1, true, 6, 18, 0), all, 5), f1 / present, 1e-12);
  double right = 0;
  for (const ClassRow& r : rows) right += r.label >= 0 && r.largest == r.label ? 1 : 0;
  EXPECT_NEAR(*value_of(planned(MetricKind::kMicroF1, true, 6, 18, 0), all, 5), right / kept, 1e-12)
      << "accuracy, where each row has one class";
  EXPECT_NEAR(*value_of(planned(MetricKind::kPerplexity, true, 6, 1, 1), all, 5),
              std::exp(loss / kept), 1e-9);
}

TEST(MetricSums, AucCountsPairsAndTiesHalf) {
  auto rows = class_rows();
  double pairs = 0, ordered = 0;
  for (ClassRow& r : rows) r.label = r.label < 0 ? -1 : r.label % 2;
  for (const ClassRow& one : rows) {
    for (const ClassRow& zero : rows) {
      if (one.label != 1 || zero.label != 0) continue;
      ++pairs;
      ordered += one.margin > zero.margin ? 1 : one.margin == zero.margin ? 0.5 : 0;
    }
  }
  const PlannedMetric metric = planned(MetricKind::kAuc, true, 2, 0, 0);
  EXPECT_NEAR(*value_of(metric, facts(rows), 5, 37), ordered / pairs, 1e-12);
  for (ClassRow& r : rows) r.label = 1;
  EXPECT_FALSE(value_of(metric, facts(rows), 5, 37)) << "one class alone";
}

// As in scikit-learn: a column without a label 1 and without a predicted one has F1 0.
TEST(MetricSums, F1OfColumnsOfLabels) {
  constexpr size_t kColumns = 4, kRows = 19;
  for (const double threshold : {0.0, 0.5}) {
    std::vector<double> rows;
    double macro = 0, all[3] = {};
    double counts[kColumns][3] = {};
    for (size_t i = 0; i < kRows * kColumns; ++i) {
      const size_t column = i % kColumns;
      const double label = column == 3 ? 0 : static_cast<double>(i * i % 7 % 2);
      const double score = column == 3 ? -1 : static_cast<double>(i * 5 % 9) / 4 - 1;
      rows.push_back(score);
      rows.push_back(label);
      const double predicted = score > threshold ? 1 : 0;
      const double added[] = {predicted * label, predicted, label};
      for (size_t k = 0; k < 3; ++k) counts[column][k] += added[k], all[k] += added[k];
    }
    for (size_t c = 0; c < 3; ++c) macro += 2 * counts[c][0] / (counts[c][1] + counts[c][2]);
    PlannedMetric f1 = planned(MetricKind::kF1, false, kColumns, 3 * kColumns, 0);
    PlannedMetric micro = planned(MetricKind::kMicroF1, false, kColumns, 3 * kColumns, 0);
    f1.threshold = micro.threshold = threshold;
    EXPECT_NEAR(*value_of(f1, rows, 2 * kColumns), macro / kColumns, 1e-12);
    EXPECT_NEAR(*value_of(micro, rows, 2 * kColumns), 2 * all[0] / (all[1] + all[2]), 1e-12);
  }
}

// A NaN equals nothing, not even itself: counting its ties once never ended.
TEST(MetricSums, AucOfANaNIsUndefined) {
  auto rows = class_rows();
  for (ClassRow& r : rows) r.label = r.label < 0 ? -1 : r.label % 2;
  rows[4].margin = NAN;
  EXPECT_FALSE(value_of(planned(MetricKind::kAuc, true, 2, 0, 0), facts(rows), 5, 37));
}

TEST(MetricSums, ColumnsOfNumbersAreAveraged) {
  constexpr size_t kColumns = 3, kRows = 23;
  std::vector<double> rows;
  for (size_t i = 0; i < kRows * kColumns; ++i) {
    const double label = 1e6 + static_cast<double>(i * 7 % 11);  // far from zero
    rows.push_back(label + 0.25 * static_cast<double>(i % 5) - 0.5);
    rows.push_back(label);
  }
  double rmse = 0, mae = 0, r2 = 0;
  for (size_t c = 0; c < kColumns; ++c) {
    double squares = 0, sizes = 0, mean = 0, distances = 0;
    for (size_t r = 0; r < kRows; ++r) mean += rows[2 * (r * kColumns + c) + 1] / kRows;
    for (size_t r = 0; r < kRows; ++r) {
      const double label = rows[2 * (r * kColumns + c) + 1];
      const double residual = rows[2 * (r * kColumns + c)] - label;
      squares += residual * residual;
      sizes += std::abs(residual);
      distances += (label - mean) * (label - mean);
    }
    rmse += std::sqrt(squares / kRows) / kColumns;
    mae += sizes / kRows / kColumns;
    r2 += (1 - squares / distances) / kColumns;
  }
  EXPECT_NEAR(*value_of(planned(MetricKind::kRmse, false, 3, 1, 3), rows, 6), rmse, 1e-12);
  EXPECT_NEAR(*value_of(planned(MetricKind::kMae, false, 3, 1, 3), rows, 6), mae, 1e-12);
  EXPECT_NEAR(*value_of(planned(MetricKind::kR2, false, 3, 1, 9), rows, 6), r2, 1e-9);
  EXPECT_EQ(value_of(planned(MetricKind::kR2, false, 1, 1, 3), {2, 2, 2, 2}, 2), 1.0);
  EXPECT_EQ(value_of(planned(MetricKind::kR2, false, 1, 1, 3), {3, 2, 2, 2}, 2), 0.0);
}

TEST(WideSum, KeepsWhatADoubleLoses) {
  WideSum sum;
  for (const double x : {1e16, 1.0, -1e16, 1.0}) sum.add(x);
  EXPECT_EQ(sum.value(), 2.0);
}

}  // namespace metric_sums_test
}  // namespace ofsdp
