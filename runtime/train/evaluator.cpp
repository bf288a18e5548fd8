#include "runtime/train/evaluator.h"

#include <array>

namespace ofsdp::runtime {

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

Evaluator::Evaluator(RankState& state, Communicator& communicator, const Sampler& sampler)
    : state_(state),
      sampler_(sampler),
      communicator_(communicator),
      loader_(*state.setup().data.eval, sampler_,
              label_rule(state.setup().count, *state.setup().data.eval), state.eval_staging()),
      metrics_(state.plan().metrics, state.metrics()) {}

Status Evaluator::add(const BoundProgram& program, const MicroResult& result) {
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
  std::array<double, 2> sums{};  // loss times count, count
  metrics_.begin();
  UpdateRunner& executor = state_.executor();
  executor.begin_update({.lr = 0, .step = step});
  loader_.start(0, sampler_.updates_per_epoch());
  for (int64_t update = 0;; ++update) {
    OFSDP_ASSIGN_OR_RETURN(const Batch* batch, loader_.next());
    if (batch == nullptr) break;
    BoundProgram& program = state_.program({batch->size, false, true, true});
    OFSDP_RETURN_IF_ERROR(executor.run(
        program, {batch->columns, batch->sample_index, 1.0, sampler_.alike(update, 0)}));
    OFSDP_ASSIGN_OR_RETURN(const MicroResult result, executor.result());
    if (batch->kept > 0) OFSDP_RETURN_IF_ERROR(executor.check_evaluation(program));
    sums[0] += batch->kept > 0 ? static_cast<double>(result.loss) * batch->kept : 0;
    sums[1] += batch->kept;
    if (batch->size > 0) OFSDP_RETURN_IF_ERROR(add(program, result));
    loader_.release();
  }
  std::array<double, 2 * kMostRanks> all;
  const std::span<double> gathered(all.data(), 2 * static_cast<size_t>(communicator_.size()));
  OFSDP_RETURN_IF_ERROR(communicator_.exchange(sums, gathered, {"evaluation exchange", -1, step}));
  sums = {};
  for (size_t i = 0; i < gathered.size(); ++i) sums[i % 2] += gathered[i];
  OFSDP_RETURN_IF_ERROR(metrics_.agree(communicator_, step));
  return EvalRow{step, epoch, sums[1] > 0 ? sums[0] / sums[1] : 0.0, metrics_.values()};
}

}  // namespace ofsdp::runtime
