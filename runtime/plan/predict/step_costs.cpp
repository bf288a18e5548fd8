#include "runtime/plan/predict/step_costs.h"

#include <cmath>

namespace ofsdp::runtime {
namespace {

constexpr double kLocalSignal = 5e-6;  // seconds: a wake-up of a rank that sleeps

class StepPricer {
 public:
  StepPricer(const RunPlan& run, const ProgramPlan& program, const Machine& machine)
      : plan_(run.plan), program_(program), machine_(machine) {}

  StepCost price(const Step& step) const {
    const double factor = machine_.topology ? machine_.topology->compute_factor : 1;
    if (step.kind == StepKind::kRun) {
      return {machine_.kernels.of(program_.kernels[static_cast<size_t>(step.index)]) / factor, 0};
    }
    if (step.kind == StepKind::kClip) return {0, exchange()};
    if (step.kind == StepKind::kTrust) return {trusting() / factor, exchanges() * exchange()};
    if (step.index < 0 || step.kind == StepKind::kCarry) return {};
    const Unit& unit = plan_.units[static_cast<size_t>(step.index)];
    switch (step.kind) {
      case StepKind::kGather:
        return gather(unit, factor);
      case StepKind::kReduce:
        return reduce(unit, factor);
      case StepKind::kReduceUpdate: {
        StepCost cost = reduce(unit, factor);
        cost.compute += update(unit) / factor;
        return cost;
      }
      case StepKind::kAllReduce:
        return all_reduce(unit);
      case StepKind::kUpdate:
      case StepKind::kApply:
        return {update(unit) / factor, 0};
      case StepKind::kAccumulate:
        return {copying(3.0 * sizeof(float) * static_cast<double>(unit.padded_numel)) / factor, 0};
      default:
        return {};
    }
  }

 private:
  double copying(double bytes) const { return bytes / machine_.rates.copy; }

  double update(const Unit& unit) const {
    return static_cast<double>(plan_.owned_numel(unit)) / machine_.rates.update;
  }

  // Norms of all parameters, and the exchanges that they take; as an update reads its elements.
  double trusting() const {
    double seconds = 0;
    for (const Unit& unit : plan_.units) seconds += update(unit);
    return seconds;
  }
  double exchanges() const {
    size_t parameters = 0;
    for (const Unit& unit : plan_.units) parameters += unit.params.size();
    const double norms = 2.0 * static_cast<double>(parameters);
    return plan_.across_ranks ? norms : std::ceil(norms / kExchangeMost);
  }

  double exchange() const {
    if (plan_.world == 1) return 0;
    if (!machine_.topology) return kLocalSignal;
    const Topology& t = *machine_.topology;
    return 2 * (std::ceil(std::log2(t.ranks_per_host)) * t.inside.alpha +
                std::ceil(std::log2(t.hosts)) * t.between.alpha);
  }

  StepCost gather(const Unit& unit, double factor) const {
    const RankGroup group = plan_.shard_group(unit, 0);
    const double numel = static_cast<double>(unit.padded_numel);
    const double width = static_cast<double>(dtype_size(plan_.param_dtype));
    const double local = copying(numel * (sizeof(float) + width));
    if (group.count == 1) return {local / factor, 0};
    if (!machine_.topology) return {0, local};
    return {0, machine_.topology->all_gather(group, numel * width)};
  }

  StepCost reduce(const Unit& unit, double factor) const {
    const RankGroup group = plan_.summing_group(unit, 0);
    const double width = static_cast<double>(dtype_size(unit.plan.gradient_dtype));
    const double owned = static_cast<double>(plan_.owned_numel(unit));
    const double local = copying(owned * (group.count * width + sizeof(float)));
    if (group.count == 1) return {local / factor, 0};
    if (!machine_.topology) return {0, kLocalSignal + local};
    const double wire = static_cast<double>(dtype_size(plan_.reduce_dtype));
    return {0, machine_.topology->all_gather(group, owned * group.count * wire)};
  }

  // Each sums its span of all copies, then takes the others' spans.
  StepCost all_reduce(const Unit& unit) const {
    const RankGroup group = plan_.replica_group(unit, 0);
    if (group.count == 1) return {};
    const double bytes = static_cast<double>(plan_.owned_numel(unit)) * sizeof(float);
    if (machine_.topology) return {0, machine_.topology->all_reduce(group, bytes)};
    const double span = bytes / group.count;
    return {0, 2 * kLocalSignal + copying(span * (group.count + 1) + 2 * span * (group.count - 1))};
  }

  const Plan& plan_;
  const ProgramPlan& program_;
  const Machine& machine_;
};

}  // namespace

std::vector<StepCost> step_costs(const RunPlan& run, const ProgramPlan& program,
                                 const Machine& machine) {
  const StepPricer pricer(run, program, machine);
  std::vector<StepCost> costs;
  for (const Step& step : program.schedule.steps) costs.push_back(pricer.price(step));
  return costs;
}

}  // namespace ofsdp::runtime
