#include "runtime/train/evaluator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "kernels/base/text.h"

namespace ofsdp::runtime {

namespace {

// Doubles in a row of ofsdp.MeasureClasses, one row per label: the label (-1: ignored), the class
// with the largest score (-1: the scores have a NaN), the number of classes that rank before the
// label's, -log p(label), and the score of class 1 minus that of class 0.
constexpr size_t kClassFacts = 5;
// For AUC, ranks exchange so many scores at a time, and one double more that encodes their labels.
constexpr size_t kScoresAtOnce = 15;

// Returns the area under the ROC curve: the share of all pairs of a score with label 1 and one with
// label 0 in which the former is larger; ties count half (Hanley and McNeil 1982). REQUIRES:
// `scores` is sorted and has no NaN.
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

bool keeps_scores(const PlannedMetric& m) {
  return metric_traits(m.spec.kind).rows == MetricRows::kScores;
}

bool counts_labels(const PlannedMetric& m) {
  return metric_traits(m.spec.kind).of_labels && !m.classes;
}

Status refused_label(const PlannedMetric& m, double label) {
  return input_error("--eval-metrics {}: expected labels of 0 and 1, found {}", m.spec.name, label);
}

// The mean over classes; with `all`, those that are nowhere count, as 0.
std::optional<double> f1(const double* counts, size_t classes, bool all) {
  double sum = 0, present = all ? static_cast<double>(classes) : 0;
  for (size_t c = 0; c < classes; ++c) {
    const double* class_counts = counts + 3 * c;  // right, predicted, labelled
    const double both = class_counts[1] + class_counts[2];
    if (both == 0) continue;
    sum += 2 * class_counts[0] / both;
    present += all ? 0 : 1;
  }
  return present > 0 ? std::optional(sum / present) : std::nullopt;
}

// Takes the counts of all classes as one class's.
std::optional<double> micro_f1(const double* counts, size_t classes, bool all) {
  double sums[3] = {};
  for (size_t i = 0; i < 3 * classes; ++i) sums[i % 3] += counts[i];
  return f1(sums, 1, all);
}

}  // namespace

MetricSums::MetricSums(const MetricLayout& plan, std::span<double> memory) : plan_(plan) {
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
    own_.push_back(keeps_scores(m) ? scores(plan.own_scores) : std::span<Score>());
    values_.push_back({m.spec.name});
  }
  all_ = scores(plan.all_scores);
  rows_.resize(plan.metrics.size());
  gathered_.resize(static_cast<size_t>(kMaxExchange * plan.ranks));
}

void MetricSums::begin() {
  std::ranges::fill(counts_, 0.0);
  std::ranges::fill(sums_, WideSum{});
  for (const auto& scores : own_) std::ranges::fill(scores, Score{});
  std::ranges::fill(rows_, 0);
}

// For metrics without measured rows (measured < 0): the executor has counted right and kept labels.
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
    if (keeps_scores(m)) {
      OFSDP_RETURN_IF_ERROR(add_scores(i, rows));
    } else if (metric_traits(m.spec.kind).rows == MetricRows::kSequences) {
      add_sequence_rows(m, rows);
    } else if (m.classes) {
      add_class_rows(m, rows);
    } else if (counts_labels(m)) {
      OFSDP_RETURN_IF_ERROR(add_label_rows(m, rows));
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
    if (metric_traits(m.spec.kind).of_labels) {
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

// Rows of ofsdp.MeasureCtc: distance and number of labels, then both in words.
void MetricSums::add_sequence_rows(const PlannedMetric& m, std::span<const double> rows) {
  constexpr size_t kSequenceFacts = 4;
  const size_t first = m.spec.kind == MetricKind::kWer ? 2 : 0;
  for (size_t at = 0; at < rows.size(); at += kSequenceFacts) {
    counts(m)[0] += rows[at + first];
    counts(m)[1] += rows[at + first + 1];
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

// A number above the threshold predicts a label 1; a NaN predicts 0.
Status MetricSums::add_label_rows(const PlannedMetric& m, std::span<const double> rows) {
  const auto width = static_cast<size_t>(m.width);
  for (size_t i = 0; i < rows.size(); i += 2) {
    const double label = rows[i + 1];
    if (label != 0 && label != 1) return refused_label(m, label);
    double* const count = counts(m) + 3 * (i / 2 % width);
    const bool predicted = rows[i] > m.threshold;
    count[0] += predicted && label == 1 ? 1 : 0;
    count[1] += predicted ? 1 : 0;
    count[2] += label;
  }
  return {};
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
      if (!known) return refused_label(m, score.label);
    }
  }
  return {};
}

Status MetricSums::exchange_counts(Communicator& communicator, int64_t step) {
  const auto ranks = static_cast<size_t>(communicator.size());
  for (size_t first = 0; first < counts_.size(); first += kMaxExchange) {
    const auto mine =
        counts_.subspan(first, std::min<size_t>(kMaxExchange, counts_.size() - first));
    const auto all = std::span(gathered_).first(mine.size() * ranks);
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, {"exchange of metrics", -1, step}));
    std::ranges::fill(mine, 0.0);
    for (size_t i = 0; i < all.size(); ++i) mine[i % mine.size()] += all[i];
  }
  return {};
}

Status MetricSums::exchange_sums(Communicator& communicator, int64_t step) {
  constexpr size_t kMax = kMaxExchange / 2;
  const auto ranks = static_cast<size_t>(communicator.size());
  for (size_t first = 0; first < sums_.size(); first += kMax) {
    const auto mine = sums_.subspan(first, std::min(kMax, sums_.size() - first));
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

// Fills `all_` with all ranks' scores whose label is 0 or 1.
Status MetricSums::exchange_scores(Communicator& communicator, std::span<const Score> mine,
                                   int64_t step) {
  constexpr size_t kNumbers = kScoresAtOnce + 1;
  static_assert(kNumbers <= kMaxExchange);
  const auto all = std::span(gathered_).first(kNumbers * static_cast<size_t>(communicator.size()));
  all_count_ = 0;
  for (size_t first = 0; first < mine.size(); first += kScoresAtOnce) {
    std::array<double, kNumbers> sent{};
    double state = 1;  // 3^i: label + 1, which is 0, 1 or 2, is digit i of a number in base 3
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
    const auto is_nan = [](const Score& score) { return std::isnan(score.score); };
    std::optional<double> column;
    if (std::ranges::none_of(scores, is_nan)) {
      std::ranges::sort(scores, {}, &Score::score);
      column = area(scores);
    }
    sum = sum && column ? std::optional(*sum + *column) : std::nullopt;
  }
  return sum ? std::optional(*sum / static_cast<double>(width)) : sum;
}

Status MetricSums::agree(Communicator& communicator, int64_t step) {
  OFSDP_RETURN_IF_ERROR(exchange_counts(communicator, step));
  OFSDP_RETURN_IF_ERROR(exchange_sums(communicator, step));
  for (size_t i = 0; i < values_.size(); ++i) {
    const PlannedMetric& m = plan_.metrics[i];
    if (keeps_scores(m)) {
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
      return f1(count, static_cast<size_t>(m.width), counts_labels(m));
    case MetricKind::kMicroF1:
      return micro_f1(count, static_cast<size_t>(m.width), counts_labels(m));
    case MetricKind::kPerplexity:
      if (count[0] == 0) return std::nullopt;
      return std::exp(sums(m)->value() / count[0]);
    case MetricKind::kAccuracy:
    case MetricKind::kTopK:
    case MetricKind::kCer:
    case MetricKind::kWer:
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
  return residuals == 0 ? 1 : 0;  // all labels are equal
}

namespace {

LabelRule label_rule(const LossCount& count, const RowSource& rows) {
  LabelRule rule;
  if (!count.by_label) return rule;
  for (size_t i = 0; i < rows.columns().size(); ++i) {
    if (rows.columns()[i].name == count.labels) rule.column = static_cast<int>(i);
  }
  rule.range.classes = count.classes;
  rule.range.ignore_index = count.ignore_index;
  if (count.class_weights != nullptr) {
    const auto weights = count.class_weights->as<float>();
    rule.class_weights.assign(weights.begin(), weights.end());
  }
  return rule;
}

}  // namespace

std::vector<LabelRule> label_rules(std::span<const LossCount> counts, const RowSource& rows) {
  std::vector<LabelRule> rules;
  for (const LossCount& count : counts) rules.push_back(label_rule(count, rows));
  return rules;
}

// Returns the names of the single losses to report: none if the loss is given by separate flags,
// which allow only one.
std::vector<MetricValue> reported_losses(const ModelSetup& setup) {
  std::vector<MetricValue> losses;
  std::map<std::string, int> seen;
  for (const LossSpec& loss : setup.source->settings().losses) {
    if (loss.said.empty()) return {};
    const int number = ++seen[loss.prediction];
    losses.push_back(
        {number == 1 ? loss.prediction : format_text("{}#{}", loss.prediction, number)});
  }
  return losses;
}

namespace {

// Returns the running statistics that the ranks compute each from its own rows.
std::vector<std::span<float>> own_statistics(const RankState& state, int ranks) {
  std::vector<std::span<float>> own;
  if (ranks == 1) return own;
  for (const KeptValues::Entry* entry : carried_entries(state.plan())) {
    own.push_back(state.statistic(*entry));
  }
  return own;
}

// An evaluation has no terms of a teacher.
std::span<const LossCount> counts_of_losses(const ModelSetup& setup) {
  return std::span(setup.counts).first(setup.source->settings().losses.size());
}

// Two floats travel as one double, bit by bit.
constexpr size_t kFloatsAtOnce = 2 * kMaxExchange;

}  // namespace

Evaluator::Evaluator(RankState& state, Communicator& communicator, const Sampler& sampler,
                     AtNan at_nan)
    : state_(state),
      sampler_(sampler),
      communicator_(communicator),
      loader_(state.setup().data.eval_rows(), sampler_,
              label_rules(counts_of_losses(state.setup()), state.setup().data.eval_rows()),
              state.eval_staging()),
      metrics_(state.plan().metrics, state.metrics()),
      statistics_(own_statistics(state, communicator.size())),
      pieces_(static_cast<size_t>(kMaxExchange) * static_cast<size_t>(communicator.size())),
      numbers_(communicator.size(), 2 * counts_of_losses(state.setup()).size()),
      losses_(reported_losses(state.setup())),
      at_nan_(at_nan) {
  first_batch_.samples.reserve(static_cast<size_t>(sampler.options().batch_size));
  first_batch_.losses.reserve(counts_of_losses(state.setup()).size());
}

Status Evaluator::add(const BoundProgram& program, const MicroResult& result) {
  matches_ = matches_ || program.matches != nullptr;
  if (program.matches != nullptr) metrics_.add_matches(result.right, result.kept);
  for (size_t i = 0; i < program.measured.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(
        metrics_.add(static_cast<int>(i), state_.executor().measured(program, i)));
  }
  return {};
}

Status Evaluator::take_statistics(int64_t step) {
  if (statistics_.empty()) return {};
  OFSDP_RETURN_IF_ERROR(state_.fetch_kept());
  for (const std::span<float> values : statistics_) {
    for (size_t first = 0; first < values.size(); first += kFloatsAtOnce) {
      const auto piece = values.subspan(first, std::min(kFloatsAtOnce, values.size() - first));
      std::array<double, kMaxExchange> mine{};
      std::memcpy(mine.data(), piece.data(), piece.size_bytes());
      OFSDP_RETURN_IF_ERROR(
          communicator_.exchange(mine, pieces_, {"exchange of running statistics", -1, step}));
      std::memcpy(piece.data(), pieces_.data(), piece.size_bytes());  // rank 0's come first
    }
  }
  return state_.store_kept();
}

// Swaps parameters and averaged parameters; a second call swaps them back. An error ends the run,
// so nothing is swapped back then. The barrier keeps ranks from reading parameters of a rank that
// has not swapped yet.
Status Evaluator::swap_average(int64_t step) {
  if (!state_.plan().uses_average) return {};
  OFSDP_RETURN_IF_ERROR(state_.executor().swap_average());
  return communicator_.barrier({"barrier of averages", -1, step});
}

Result<EvalRow> Evaluator::run(int64_t step, int64_t epoch, Progress* progress) {
  OFSDP_RETURN_IF_ERROR(take_statistics(step));
  OFSDP_RETURN_IF_ERROR(swap_average(step));
  OFSDP_ASSIGN_OR_RETURN(const EvalRow row, pass(step, epoch, progress));
  OFSDP_RETURN_IF_ERROR(swap_average(step));
  return row;
}

Result<EvalRow> Evaluator::pass(int64_t step, int64_t epoch, Progress* progress) {
  const std::span<double> sums = numbers_.mine();
  std::ranges::fill(sums, 0.0);
  std::array<double, kMaxLossTerms> whole;
  whole.fill(1);
  metrics_.begin();
  UpdateRunner& executor = state_.executor();
  executor.begin_update({.lr = 0, .step = step});
  loader_.start(0, sampler_.updates_per_epoch());
  for (int64_t update = 0;; ++update) {
    if (progress != nullptr) progress->evaluating(update, sampler_.updates_per_epoch());
    OFSDP_ASSIGN_OR_RETURN(const Batch* batch, loader_.next());
    if (batch == nullptr) break;
    BoundProgram& program = state_.program(
        {.batch = batch->size, .training = false, .first_micro = true, .last_micro = true});
    const std::span<const double> shares(whole.data(), batch->kept.size());
    OFSDP_RETURN_IF_ERROR(executor.run(
        program, {batch->columns, batch->sample_index, shares, sampler_.alike(update, 0)}));
    OFSDP_ASSIGN_OR_RETURN(const MicroResult result, executor.result());
    const bool checks = at_nan_ == AtNan::kEnds && batch->counts();
    if (checks) OFSDP_RETURN_IF_ERROR(executor.check_evaluation(program));
    for (size_t i = 0; i < batch->kept.size(); ++i) {
      const double kept = batch->kept[i];
      const TermForm form = state_.setup().counts[i].form;
      const bool counts = kept > 0 || (form == TermForm::kNumerator && batch->size > 0);
      const double weight = form == TermForm::kMean ? kept : 1;
      sums[2 * i] += counts ? static_cast<double>(result.losses[i]) * weight : 0;
      sums[2 * i + 1] += kept;
    }
    if (batch->size > 0) OFSDP_RETURN_IF_ERROR(add(program, result));
    if (update == 0) keep_first(*batch, result);
    loader_.release();
  }
  OFSDP_RETURN_IF_ERROR(numbers_.exchange(communicator_, {"evaluation exchange", -1, step}));
  OFSDP_RETURN_IF_ERROR(metrics_.agree(communicator_, step));
  return EvalRow{step, epoch, loss_of_all(), metrics_.values(), losses_, bad_rank()};
}

void Evaluator::keep_first(const Batch& batch, const MicroResult& result) {
  first_batch_.samples.assign(batch.sample_index.begin(), batch.sample_index.end());
  first_batch_.losses.clear();
  for (size_t i = 0; i < batch.kept.size(); ++i) {
    const bool counts = batch.size > 0 && batch.kept[i] > 0;
    first_batch_.losses.push_back(counts ? static_cast<double>(result.losses[i]) : std::nan(""));
  }
}

double Evaluator::loss_of_all() {
  const std::vector<LossSpec>& specs = state_.setup().source->settings().losses;
  double loss = 0;
  bool any = false;
  for (size_t i = 0; i < specs.size(); ++i) {
    double sum = 0, count = 0;
    for (size_t r = 0; r < numbers_.ranks(); ++r) {
      sum += numbers_.of(r)[2 * i];
      count += numbers_.of(r)[2 * i + 1];
    }
    if (!losses_.empty()) losses_[i].value.reset();
    if (count <= 0) continue;
    const double value = state_.setup().counts[i].form == TermForm::kSum ? sum : sum / count;
    if (!losses_.empty()) losses_[i].value = value;
    loss += specs[i].weight * value;
    any = true;
  }
  return any && !std::isnan(loss) ? loss : std::nan("");  // without a sign, which prints
}

// The first rank with a sum that is not finite.
int Evaluator::bad_rank() const {
  for (size_t r = 0; r < numbers_.ranks(); ++r) {
    const auto bad = [](double number) { return !std::isfinite(number); };
    if (std::ranges::any_of(numbers_.of(r), bad)) return static_cast<int>(r);
  }
  return -1;
}

std::vector<std::string> Evaluator::undefined(const EvalRow& row) const {
  std::vector<std::string> names;
  if (!row.has_label()) names.push_back("loss");
  for (const MetricValue& loss : row.losses) {
    if (!loss.value) names.push_back("losses/" + loss.name);
  }
  const std::vector<PlannedMetric>& planned = state_.plan().metrics.metrics;
  for (size_t i = 0; i < row.metrics.size(); ++i) {
    const bool measured = planned[i].measured >= 0 || matches_;
    if (measured && !row.metrics[i].value) names.push_back(row.metrics[i].name);
  }
  return names;
}

std::vector<std::string> Evaluator::not_finite(const EvalRow& row) const {
  std::vector<std::string> found;
  const auto look_at = [&found](const std::string& name, double value, const std::string& where) {
    if (std::isfinite(value)) return;
    found.push_back(format_text("{} is {}{}", name, std::isnan(value) ? "NaN" : "infinite", where));
  };
  if (row.bad_rank >= 0) look_at("loss", row.loss, format_text(" (rank {})", row.bad_rank));
  for (const MetricValue& loss : row.losses)
    look_at("losses/" + loss.name, loss.value.value_or(0), "");
  for (const MetricValue& metric : row.metrics) look_at(metric.name, metric.value.value_or(0), "");
  return found;
}

namespace {

bool warn_of(const EvalRow& row, const std::vector<std::string>& found, const char* before,
             const char* after) {
  if (found.empty()) return false;
  print_lines(stderr,
              format_text("fsdp-run: warning: evaluation{}: {}{}: null in the rows, never the "
                          "best, no better value for --early-stop{}\n",
                          row.step > 0 ? format_text(" after step {}", row.step) : "", before,
                          escaped(joined(found, ", ")), after));
  return true;
}

}  // namespace

// A NaN among scores leaves metrics undefined, too; that is no fault of labels.
bool warn_of_undefined(const Evaluator& evaluator, const EvalRow& row) {
  if (row.bad_rank >= 0) return false;
  return warn_of(row, evaluator.undefined(row), "its labels do not define ", "");
}

bool warn_of_not_finite(const Evaluator& evaluator, const EvalRow& row) {
  const bool trains = evaluator.at_nan() == AtNan::kGoesOn;
  return warn_of(row, evaluator.not_finite(row), "",
                 trains ? "; the weights are kept and training goes on" : "");
}

}  // namespace ofsdp::runtime
