// The doctor's updates: one rank, on a copy of the weights, nothing written.
#include <algorithm>
#include <cmath>

#include "kernels/base/escaped.h"
#include "runtime/commands/doctor_findings.h"
#include "runtime/train/trainer.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kUpdates = 10;

using Values = std::vector<std::vector<float>>;  // a unit each

Values values_of(const RankState& state) {
  Values values;
  for (const Unit& unit : state.plan().plan.units) {
    const float* begin = state.held(unit, -1).values();
    values.emplace_back(begin, begin + state.plan().plan.owned_numel(unit));
  }
  return values;
}

// Trained tensors of which no element is another than before.
std::vector<std::string> still_tensors(const RankState& state, const Values& before) {
  std::vector<std::string> names;
  const Values after = values_of(state);
  for (size_t u = 0; u < after.size(); ++u) {
    for (const UnitParam& p : state.plan().plan.units[u].params) {
      const auto part = [&](const Values& values) {
        return std::span(values[u]).subspan(static_cast<size_t>(p.offset),
                                            static_cast<size_t>(p.numel));
      };
      // B of an adapter begins with 0, so A has no gradient yet.
      const bool same = std::ranges::equal(part(before), part(after));
      if (same && !p.name.ends_with(".lora_A.weight")) names.push_back(p.name);
    }
  }
  return names;
}

// Plain gradient descent by steps so large that any gradient shows.
Options probe_of(Options options) {
  options.optimizer = {};
  options.optimizer.kind = OptimizerKind::kSgd;
  options.optimizer.lr = 1000;
  options.optimizer.weight_decay = 0;
  options.schedule = {};
  options.sharding.param_dtype = DType::kFloat32;
  options.sharding.reduce_dtype = DType::kFloat32;
  options.qat_scales = QatScales::kFixed;
  return options;
}

void check_first(const SomeUpdates& first, Findings& findings) {
  if (first.rows.empty()) {
    return findings.add("the first loss: " + first.failure,
                        "look at the values of the data and of the file; --freeze, --train and "
                        "--lr change nothing before the first update",
                        /*fatal=*/true, first.table);
  }
  const double loss = first.rows[0].loss;
  const double chance = first.classes > 1 ? std::log(static_cast<double>(first.classes)) : 0;
  if (chance > 0 && loss > 1.5 * chance + 0.5) {
    findings.add(format_text("the first loss is {:.3g}, but guessing among {} classes has {:.3g}: "
                             "the scores are too large or meant for other labels",
                             loss, first.classes, chance),
                 format_text("--replace-head {} draws the last layer anew; or --labels, "
                             "--prediction",
                             first.classes));
  }
  if (!first.still.empty()) {
    findings.add(format_text("the first gradient of {} tensor{} is 0 in every element ({}): what "
                             "they feed is dead or constant",
                             first.still.size(), first.still.size() == 1 ? "" : "s",
                             some_names(first.still)),
                 "--freeze them if that is meant, else start from other values with --resume "
                 "FILE.onnx");
  }
}

void check_course(const SomeUpdates& some, const Options& options, Findings& findings) {
  const std::string mend =
      format_text("--lr {:.6g} (--find-lr tries rates), --warmup-steps or --clip-grad-norm 1",
                  options.optimizer.lr / 10);
  const std::string rate = format_text("--lr {:.6g}: ", options.optimizer.lr);
  if (!some.failure.empty()) {
    return findings.add(rate + some.failure, mend, /*fatal=*/false, some.table);
  }
  const size_t count = some.rows.size();
  if (count < 4) return;
  const double first = some.rows[0].loss;
  const double last = (some.rows[count - 1].loss + some.rows[count - 2].loss) / 2;
  if (last < 2 * first + 0.5) return;
  findings.add(
      format_text("{}the loss rises from {:.3g} to {:.3g} in {} updates", rate, first, last, count),
      mend);
}

}  // namespace

Result<SomeUpdates> run_updates(const RunContext& context, int64_t count, bool compare,
                                const std::function<bool(const StepRow&)>& goes_on) {
  Options options = context.options;
  options.run.epochs.reset();
  options.run.steps = count;
  options.files.watch = 1;  // says where norms began to grow, should they
  const RunContext own{
      options,       context.origin, context.registry, context.optimizers, context.communicator,
      context.ledger};
  OFSDP_ASSIGN_OR_RETURN(const auto run, PreparedRun::make(own, ""));
  OFSDP_ASSIGN_OR_RETURN(const auto state,
                         RankState::make(run->plan(), run->setup(), own.communicator, own.ledger,
                                         run->executor_options()));
  const Values before = compare ? values_of(*state) : Values();
  MetricsWriter metrics;
  Trainer trainer(run->settings(), *state, own.communicator, own.ledger, *run->plan().train_sampler,
                  metrics);
  SomeUpdates some;
  const LossCount& counted = run->setup().counts.front();
  some.classes = counted.sum ? 0 : counted.classes;  // the loss of chance is that of a mean
  for (int64_t step = 1; step <= count; ++step) {
    const auto row = trainer.run_one(step);
    if (!row.ok()) {
      const std::string& message = row.error().message();
      const size_t end = std::min(message.find('\n'), message.size());
      some.failure = message.substr(0, end);
      some.table = message.substr(std::min(end + 1, message.size()));
      return some;
    }
    some.rows.push_back(*row);
    if (step == 1 && compare) some.still = still_tensors(*state, before);
    if (goes_on && !goes_on(*row)) return some;
  }
  return some;
}

Status check_updates(const RunContext& context, int64_t total, Findings& findings) {
  const Options probe = probe_of(context.options);
  const RunContext probing{
      probe,         context.origin, context.registry, context.optimizers, context.communicator,
      context.ledger};
  OFSDP_ASSIGN_OR_RETURN(const SomeUpdates first, run_updates(probing, 1, true, {}));
  check_first(first, findings);
  if (findings.stops) return {};
  Options options = context.options;
  if (!options.schedule.total_steps) options.schedule.total_steps = total;
  const RunContext running{
      options,       context.origin, context.registry, context.optimizers, context.communicator,
      context.ledger};
  OFSDP_ASSIGN_OR_RETURN(const SomeUpdates some,
                         run_updates(running, std::min(total, kUpdates), false, {}));
  check_course(some, context.options, findings);
  return {};
}

}  // namespace ofsdp::runtime
