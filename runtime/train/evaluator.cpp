#include "runtime/train/evaluator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

#include "kernels/base/escaped.h"

namespace ofsdp::runtime {

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

std::vector<LabelRule> label_rules(const std::vector<LossCount>& counts, const RowSource& rows) {
  std::vector<LabelRule> rules;
  for (const LossCount& count : counts) rules.push_back(label_rule(count, rows));
  return rules;
}

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

Evaluator::Evaluator(RankState& state, Communicator& communicator, const Sampler& sampler)
    : state_(state),
      sampler_(sampler),
      communicator_(communicator),
      loader_(*state.setup().data.eval, sampler_,
              label_rules(state.setup().counts, *state.setup().data.eval), state.eval_staging()),
      metrics_(state.plan().metrics, state.metrics()),
      numbers_(communicator.size(), 2 * state.setup().counts.size()),
      losses_(reported_losses(state.setup())) {}

Status Evaluator::add(const BoundProgram& program, const MicroResult& result) {
  matches_ = matches_ || program.matches != nullptr;
  if (program.matches != nullptr) metrics_.add_matches(result.right, result.kept);
  for (size_t i = 0; i < program.measured.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(metrics_.add(static_cast<int>(i), program.measured[i]));
  }
  return {};
}

// No rank may read what another has not exchanged yet.
Status Evaluator::swap_average(int64_t step) {
  if (!state_.plan().uses_average) return {};
  state_.optimizer().swap_average();
  return communicator_.barrier({"barrier of averages", -1, step});
}

Result<EvalRow> Evaluator::run(int64_t step, int64_t epoch) {
  OFSDP_RETURN_IF_ERROR(swap_average(step));
  OFSDP_ASSIGN_OR_RETURN(const EvalRow row, pass(step, epoch));
  OFSDP_RETURN_IF_ERROR(swap_average(step));
  return row;
}

Result<EvalRow> Evaluator::pass(int64_t step, int64_t epoch) {
  const std::span<double> sums = numbers_.mine();
  std::ranges::fill(sums, 0.0);
  std::array<double, kMostLossTerms> whole;
  whole.fill(1);
  metrics_.begin();
  UpdateRunner& executor = state_.executor();
  executor.begin_update({.lr = 0, .step = step});
  loader_.start(0, sampler_.updates_per_epoch());
  for (int64_t update = 0;; ++update) {
    OFSDP_ASSIGN_OR_RETURN(const Batch* batch, loader_.next());
    if (batch == nullptr) break;
    BoundProgram& program = state_.program({batch->size, false, true, true});
    const std::span<const double> shares(whole.data(), batch->kept.size());
    OFSDP_RETURN_IF_ERROR(executor.run(
        program, {batch->columns, batch->sample_index, shares, sampler_.alike(update, 0)}));
    OFSDP_ASSIGN_OR_RETURN(const MicroResult result, executor.result());
    if (batch->counts()) OFSDP_RETURN_IF_ERROR(executor.check_evaluation(program));
    for (size_t i = 0; i < batch->kept.size(); ++i) {
      const double kept = batch->kept[i];
      const double weight = state_.setup().counts[i].sum ? 1 : kept;
      sums[2 * i] += kept > 0 ? static_cast<double>(result.losses[i]) * weight : 0;
      sums[2 * i + 1] += kept;
    }
    if (batch->size > 0) OFSDP_RETURN_IF_ERROR(add(program, result));
    loader_.release();
  }
  OFSDP_RETURN_IF_ERROR(numbers_.exchange(communicator_, {"evaluation exchange", -1, step}));
  OFSDP_RETURN_IF_ERROR(metrics_.agree(communicator_, step));
  return EvalRow{step, epoch, loss_of_all(), metrics_.values(), losses_};
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
    const double value = state_.setup().counts[i].sum ? sum : sum / count;
    if (!losses_.empty()) losses_[i].value = value;
    loss += specs[i].weight * value;
    any = true;
  }
  return any ? loss : std::nan("");
}

std::vector<std::string> Evaluator::undefined(const EvalRow& row) const {
  std::vector<std::string> names;
  if (std::isnan(row.loss)) names.push_back("loss");
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

void warn_of_undefined(const Evaluator& evaluator, const EvalRow& row) {
  const std::vector<std::string> names = evaluator.undefined(row);
  if (names.empty()) return;
  print_lines(
      stderr,
      format_text("fsdp-run: warning: evaluation after step {}: its labels do not define {}: "
                  "null in the rows, never the best, no better value for --early-stop\n",
                  row.step, escaped(joined(names, ", "))));
}

}  // namespace ofsdp::runtime
