#include "runtime/plan/predict/step_costs.h"

#include <algorithm>
#include <cmath>

namespace ofsdp::runtime {
namespace {

constexpr double kLocalSignal = 5e-6;  // seconds: a wake-up of a rank that sleeps

class StepPricer {
 public:
  StepPricer(const RunPlan& run, const ProgramPlan& program, const Machine& machine)
      : run_(run), plan_(run.plan), program_(program), machine_(machine) {}

  StepCost price(const Operation& op) const {
    const double factor = machine_.topology ? machine_.topology->compute_factor : 1;
    switch (op.kind) {
      case OpKind::kRun:
        return {machine_.kernels.of(program_.kernels[static_cast<size_t>(op.node)]) / factor, 0};
      case OpKind::kOrthogonalize:
        return {orthogonalizing(op) / factor, 0};
      case OpKind::kWatch:
        return watching(op, factor);
      case OpKind::kMeet:
      case OpKind::kClip:
        return {0, exchange()};
      case OpKind::kTrust:
        return {trusting() / factor, exchanges() * exchange()};
      case OpKind::kUnshard:
        return op.frozen ? StepCost{} : gather(op, factor);
      case OpKind::kReduce: {
        StepCost cost = reduce(op, factor);
        if (op.stages.update) cost.compute += update(op.part.numel) / factor;
        return cost;
      }
      case OpKind::kPlaceRows:
        return {copying(2.0 * static_cast<double>(op.dst.bytes())) / factor, 0};
      case OpKind::kAllReduce:
      case OpKind::kJoinRows:
        return all_reduce(op);
      case OpKind::kUpdate:
      case OpKind::kApply:
      case OpKind::kSums:
        return {update(op.part.numel) / factor, 0};
      case OpKind::kConvert:
      case OpKind::kAdd:
        return {copying(3.0 * sizeof(float) * static_cast<double>(op.dst.count)) / factor, 0};
      default:
        return {};
    }
  }

 private:
  double copying(double bytes) const { return bytes / machine_.rates.copy; }

  double update(int64_t elements) const {
    return static_cast<double>(elements) / machine_.rates.update;
  }

  // The ranks wait for the one that has most of the unit's matrices.
  double orthogonalizing(const Operation& op) const {
    if (machine_.rates.products <= 0) return 0;
    std::vector<double> of_owner(static_cast<size_t>(op.group.count));
    for (const OrthogonalMatrix& m : run_.orthogonal[static_cast<size_t>(op.unit)]) {
      of_owner[static_cast<size_t>(m.owner)] += orthogonal_flops(m);
    }
    return std::ranges::max(of_owner) / machine_.rates.products;
  }

  // One pass over the weights, though some are in the cache; an update of several is watched.
  StepCost watching(const Operation& op, double factor) const {
    int64_t owned = 0;
    for (const Unit& unit : plan_.units) owned += plan_.owned_numel(unit);
    const auto interval = static_cast<double>(run_.watch_interval);
    return {copying(sizeof(float) * static_cast<double>(owned)) / factor / interval,
            all_reduce(op).communication / interval};
  }

  // Norms of all parameters, and the exchanges that they take; as an update reads its elements.
  double trusting() const {
    double seconds = 0;
    for (const Unit& unit : plan_.units) seconds += update(plan_.owned_numel(unit));
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

  StepCost gather(const Operation& op, double factor) const {
    const RankGroup& group = op.group;
    const double numel = static_cast<double>(op.dst.count);
    const double width = static_cast<double>(dtype_size(op.dst.dtype));
    const double local = copying(numel * (sizeof(float) + width));
    if (group.count == 1) return {local / factor, 0};
    if (!machine_.topology) return {0, local};
    return {0, machine_.topology->all_gather(group, numel * width)};
  }

  StepCost reduce(const Operation& op, double factor) const {
    const RankGroup& group = op.group;
    const double width = static_cast<double>(dtype_size(op.src.dtype));
    const double owned = static_cast<double>(op.part.numel);
    const double local = copying(owned * (group.count * width + sizeof(float)));
    if (group.count == 1) return {local / factor, 0};
    if (!machine_.topology) return {0, kLocalSignal + local};
    const double wire = static_cast<double>(dtype_size(plan_.reduce_dtype));
    return {0, machine_.topology->all_gather(group, owned * group.count * wire)};
  }

  // Each sums its span of all copies, then takes the others' spans.
  StepCost all_reduce(const Operation& op) const {
    const RankGroup& group = op.group;
    if (group.count == 1) return {};
    const double bytes = static_cast<double>(op.dst.bytes());
    if (machine_.topology) return {0, machine_.topology->all_reduce(group, bytes)};
    const double span = bytes / group.count;
    return {0, 2 * kLocalSignal + copying(span * (group.count + 1) + 2 * span * (group.count - 1))};
  }

  const RunPlan& run_;
  const Plan& plan_;
  const ProgramPlan& program_;
  const Machine& machine_;
};

}  // namespace

std::vector<StepCost> step_costs(const RunPlan& run, const ProgramPlan& program,
                                 const Machine& machine) {
  const StepPricer pricer(run, program, machine);
  std::vector<StepCost> costs(program.schedule.steps.size());
  for (const Operation& op : lower(program, lowering(run, 0)).operations) {
    const StepCost cost = pricer.price(op);
    costs[static_cast<size_t>(op.step)].compute += cost.compute;
    costs[static_cast<size_t>(op.step)].communication += cost.communication;
  }
  return costs;
}

}  // namespace ofsdp::runtime
