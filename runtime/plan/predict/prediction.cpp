#include "runtime/plan/predict/prediction.h"

#include <algorithm>
#include <cmath>

#include "runtime/program/steps.inc"

namespace ofsdp::runtime {

namespace {

constexpr double kLocalSignal = 5e-6;  // seconds: a wake-up of a rank that sleeps

class StepPricer {
 public:
  StepPricer(const RunPlan& run, const ProgramPlan& program, const Machine& machine)
      : run_(run), plan_(run.plan), program_(program), machine_(machine) {}

  StepCost price(const Operation& op) const {
    switch (op.kind) {
#define OPERATION(kind, engine, cost, traffic, description) \
  case OpKind::k##kind:                                     \
    return cost(op);
#define HOST_OPERATION(kind, description) \
  case OpKind::k##kind:                   \
    break;
#include "runtime/program/steps.inc"
    }
    return {};
  }

 private:
  // --- The column `cost` of steps.inc

  StepCost none(const Operation&) const { return {}; }

  StepCost node(const Operation& op) const {
    return computation(machine_.kernels.of(program_.kernels[static_cast<size_t>(op.node)]));
  }

  StepCost copy(const Operation& op) const {
    return computation(copying(3.0 * sizeof(float) * static_cast<double>(op.dst.count)));
  }

  StepCost place_rows(const Operation& op) const {
    return computation(copying(2.0 * static_cast<double>(op.dst.bytes())));
  }

  StepCost update(const Operation& op) const { return computation(updating(op.part.numel)); }

  // A frozen part is gathered with the rest.
  StepCost unshard(const Operation& op) const {
    if (op.frozen) return {};
    const RankGroup& group = op.group;
    const double numel = static_cast<double>(op.dst.count);
    const double width = static_cast<double>(dtype_size(op.dst.dtype));
    const double local = copying(numel * (sizeof(float) + width));
    if (group.count == 1) return computation(local);
    if (!machine_.topology) return {0, local};
    return {0, machine_.topology->all_gather(group, numel * width)};
  }

  StepCost reduce(const Operation& op) const {
    StepCost cost = reduction(op);
    if (op.stages.update) cost.compute += update(op).compute;
    return cost;
  }

  // Each rank sums its span of all copies, then takes the spans of the others.
  StepCost all_reduce(const Operation& op) const {
    const RankGroup& group = op.group;
    if (group.count == 1) return {};
    const double bytes = static_cast<double>(op.dst.bytes());
    if (machine_.topology) return {0, machine_.topology->all_reduce(group, bytes)};
    const double span = bytes / group.count;
    return {0, 2 * kLocalSignal + copying(span * (group.count + 1) + 2 * span * (group.count - 1))};
  }

  StepCost exchange(const Operation&) const { return {0, exchange()}; }

  // Norms of all parameters (each element costs as much as in an update) and their exchanges.
  StepCost trust(const Operation&) const {
    double seconds = 0;
    size_t parameters = 0;
    for (const Unit& unit : plan_.units) {
      seconds += updating(plan_.owned_numel(unit));
      parameters += unit.params.size();
    }
    const double norms = 2.0 * static_cast<double>(parameters);
    const double exchanges = plan_.across_ranks ? norms : std::ceil(norms / kMaxExchange);
    return {computation(seconds).compute, exchanges * exchange()};
  }

  // All ranks wait for the rank with the most work.
  StepCost orthogonalize(const Operation& op) const {
    if (machine_.rates.products <= 0) return {};
    std::vector<double> of_owner(static_cast<size_t>(op.group.count));
    for (const OrthogonalMatrix& m : run_.orthogonal[static_cast<size_t>(op.unit)]) {
      of_owner[static_cast<size_t>(m.owner)] += orthogonal_flops(m);
    }
    return computation(std::ranges::max(of_owner) / machine_.rates.products);
  }

  // One pass over the weights, though some are in the cache. One update in `watch_interval` is
  // watched.
  StepCost watch(const Operation& op) const {
    int64_t owned = 0;
    for (const Unit& unit : plan_.units) owned += plan_.owned_numel(unit);
    const auto interval = static_cast<double>(run_.watch_interval);
    return {computation(copying(sizeof(float) * static_cast<double>(owned))).compute / interval,
            all_reduce(op).communication / interval};
  }

  // --- Shared by these

  StepCost computation(double seconds) const { return {seconds / compute_factor_, 0}; }

  double copying(double bytes) const { return bytes / machine_.rates.copy; }

  double updating(int64_t elements) const {
    return static_cast<double>(elements) / machine_.rates.update;
  }

  double exchange() const {
    if (plan_.world == 1) return 0;
    if (!machine_.topology) return kLocalSignal;
    const Topology& t = *machine_.topology;
    return 2 * (std::ceil(std::log2(t.ranks_per_host)) * t.inside.alpha +
                std::ceil(std::log2(t.hosts)) * t.between.alpha);
  }

  StepCost reduction(const Operation& op) const {
    const RankGroup& group = op.group;
    const double width = static_cast<double>(dtype_size(op.src.dtype));
    const double owned = static_cast<double>(op.part.numel);
    const double local = copying(owned * (group.count * width + sizeof(float)));
    if (group.count == 1) return computation(local);
    if (!machine_.topology) return {0, kLocalSignal + local};
    const double wire = static_cast<double>(dtype_size(plan_.reduce_dtype));
    return {0, machine_.topology->all_gather(group, owned * group.count * wire)};
  }

  const RunPlan& run_;
  const Plan& plan_;
  const ProgramPlan& program_;
  const Machine& machine_;
  const double compute_factor_ = machine_.topology ? machine_.topology->compute_factor : 1;
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

int64_t times_an_update(const ProgramKey& key, const BatchSizes& batch) {
  if (!key.training || key.batch != batch.batch_size) return 0;
  const bool middle = !key.first_micro && !key.last_micro;
  return middle ? batch.grad_accum - 2 : 1;
}

Simulation simulate_program(const RunPlan& run, const ProgramPlan& program,
                            const Machine& machine) {
  SimulationOptions how;
  if (machine.topology) how = {machine.topology->overlap, machine.topology->contention};
  return simulate(program.graph, run.plan, program.schedule, run.slots,
                  step_costs(run, program, machine), how);
}

double predicted_seconds(const RunPlan& run, const Machine& machine, const BatchSizes& batch) {
  double seconds = 0;
  for (const auto& [key, program] : run.programs) {
    const auto times = static_cast<double>(times_an_update(key, batch));
    if (times > 0) seconds += times * simulate_program(run, program, machine).seconds;
  }
  return seconds;
}

}  // namespace ofsdp::runtime
