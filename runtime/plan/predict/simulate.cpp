#include "runtime/plan/predict/simulate.h"

#include <algorithm>

namespace ofsdp::runtime {
namespace {

class Simulator {
 public:
  Simulator(const Graph& graph, const Plan& plan, const Schedule& schedule,
            const GradientSlots& slots, const std::vector<StepCost>& costs,
            const SimulationOptions& options)
      : graph_(graph),
        schedule_(schedule),
        slots_(slots),
        costs_(costs),
        options_(options),
        parameter_(parameter_behind(graph)),
        unit_(unit_of_parameter(graph, plan)),
        gathered_(plan.units.size(), 0),
        posted_(plan.units.size(), 0),
        reduced_(plan.units.size(), 0) {
    result_.exposed_of_unit.assign(plan.units.size(), 0);
  }

  Simulation run() {
    for (int s = 0; s < static_cast<int>(schedule_.steps.size()); ++s) place(s);
    for (const auto& [s, unit] : updates_) {
      wait(reduced_[unit], static_cast<int>(unit));
      compute(s);
    }
    wait(communication_end_, last_unit_);
    result_.seconds = compute_end_;
    return std::move(result_);
  }

 private:
  void place(int s) {
    const Step& step = schedule_.steps[static_cast<size_t>(s)];
    const auto index = static_cast<size_t>(std::max(step.index, 0));
    switch (step.kind) {
      case StepKind::kRun:
        wait_for_units(graph_.nodes[index]);
        return compute(s);
      case StepKind::kGather:
        gathered_[index] = communicate(s, compute_end_);
        return;
      case StepKind::kAcquire:
        for (int other : slots_.shares_bytes[index]) {
          wait(reduced_[static_cast<size_t>(other)], other);
        }
        return compute(s);
      case StepKind::kPost:
        posted_[index] = compute_end_;
        return;
      case StepKind::kReduce:
      case StepKind::kAllReduce:
        reduced_[index] = communicate(s, std::max(posted_[index], reduced_[index]));
        return;
      case StepKind::kReduceUpdate:
        reduced_[index] = communicate(s, posted_[index]);
        if (!options_.overlap) return compute(s);
        updates_.emplace_back(s, index);
        return;
      case StepKind::kFactor:
      case StepKind::kOrthogonalize:
      case StepKind::kTrust:
      case StepKind::kWatch:
        wait(communication_end_, last_unit_);
        if (costs_[static_cast<size_t>(s)].communication > 0) compute(s);
        wait(communicate(s, compute_end_), -1);
        return;
      case StepKind::kClip:
        wait(communication_end_, last_unit_);
        wait(communicate(s, compute_end_), -1);
        return;
      case StepKind::kJoinRows:
        wait(communicate(s, compute_end_), -1);
        return;
      case StepKind::kUpdate:
        wait(reduced_[index], step.index);
        return compute(s);
      default:
        return compute(s);
    }
  }

  void wait_for_units(const Node& node) {
    for (ValueId id : node.inputs) {
      const int p = parameter_[static_cast<size_t>(id)];
      const int unit = p < 0 ? -1 : unit_[static_cast<size_t>(p)];
      if (unit >= 0) wait(gathered_[static_cast<size_t>(unit)], unit);
    }
  }

  // The compute stream stands still until `time`, because of `unit`.
  void wait(double time, int unit) {
    if (time <= compute_end_) return;
    const double still = time - compute_end_;
    result_.exposed += still;
    if (unit >= 0) result_.exposed_of_unit[static_cast<size_t>(unit)] += still;
    compute_end_ = time;
  }

  // Work during communication goes on slower until that ends.
  void compute(int s) {
    double work = costs_[static_cast<size_t>(s)].compute;
    if (work <= 0) return;
    const double begin = compute_end_;
    const double beside = std::max(0.0, communication_end_ - begin);
    if (beside > 0) {
      const double done = std::min(work, beside / options_.contention);
      work += done * (options_.contention - 1);
    }
    compute_end_ = begin + work;
    result_.compute += work;
    result_.steps.push_back({s, Stream::kCompute, begin, compute_end_});
  }

  double communicate(int s, double earliest) {
    const double seconds = costs_[static_cast<size_t>(s)].communication;
    if (seconds <= 0) return compute(s), compute_end_;
    const Step& step = schedule_.steps[static_cast<size_t>(s)];
    const int unit = traits(step.kind).subject == StepSubject::kUnit ? step.index : -1;
    if (!options_.overlap) earliest = compute_end_;
    const double begin = std::max(earliest, communication_end_);
    communication_end_ = begin + seconds;
    last_unit_ = unit;
    result_.communication += seconds;
    result_.steps.push_back({s, Stream::kCommunication, begin, communication_end_});
    if (!options_.overlap) wait(communication_end_, unit);
    return communication_end_;
  }

  const Graph& graph_;
  const Schedule& schedule_;
  const GradientSlots& slots_;
  const std::vector<StepCost>& costs_;
  const SimulationOptions& options_;
  std::vector<int> parameter_;                       // per value
  std::vector<int> unit_;                            // per parameter
  std::vector<double> gathered_, posted_, reduced_;  // per unit: when
  std::vector<std::pair<int, size_t>> updates_;      // step, unit: after the last node
  double compute_end_ = 0, communication_end_ = 0;
  int last_unit_ = -1;  // of the latest communication
  Simulation result_;
};

}  // namespace

Simulation simulate(const Graph& graph, const Plan& plan, const Schedule& schedule,
                    const GradientSlots& slots, const std::vector<StepCost>& costs,
                    const SimulationOptions& options) {
  return Simulator(graph, plan, schedule, slots, costs, options).run();
}

}  // namespace ofsdp::runtime
