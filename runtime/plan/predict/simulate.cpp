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
    const int index = schedule_.steps[static_cast<size_t>(s)].index;
    const auto i = static_cast<size_t>(std::max(index, 0));
    switch (schedule_.steps[static_cast<size_t>(s)].kind) {
#define STEP(kind, subject, traits, timing, lowering, description) \
  case StepKind::k##kind:                                          \
    return timing(s, i);
#include "runtime/program/steps.inc"
    }
  }

  // --- The column `timing` of steps.inc; s: the step, i: its index.

  void compute(int s, size_t) { compute(s); }

  void run_node(int s, size_t i) {
    for (ValueId id : graph_.nodes[i].inputs) {
      const int p = parameter_[static_cast<size_t>(id)];
      const int unit = p < 0 ? -1 : unit_[static_cast<size_t>(p)];
      if (unit >= 0) wait(gathered_[static_cast<size_t>(unit)], unit);
    }
    compute(s);
  }

  void gather(int s, size_t i) { gathered_[i] = communicate(s, compute_end_); }

  void acquire(int s, size_t i) {
    for (int other : slots_.shares_bytes[i]) wait(reduced_[static_cast<size_t>(other)], other);
    compute(s);
  }

  void post(int, size_t i) { posted_[i] = compute_end_; }

  void reduce(int s, size_t i) { reduced_[i] = communicate(s, std::max(posted_[i], reduced_[i])); }

  void reduce_update(int s, size_t i) {
    reduced_[i] = communicate(s, posted_[i]);
    if (!options_.overlap) return compute(s);
    updates_.emplace_back(s, i);
  }

  void exchange(int s, size_t i) {
    wait(communication_end_, last_unit_);
    if (costs_[static_cast<size_t>(s)].communication > 0) compute(s);
    join_rows(s, i);
  }

  void clip(int s, size_t i) {
    wait(communication_end_, last_unit_);
    join_rows(s, i);
  }

  void join_rows(int s, size_t) { wait(communicate(s, compute_end_), -1); }

  void update(int s, size_t i) {
    wait(reduced_[i], static_cast<int>(i));
    compute(s);
  }

  // --- The two streams

  // Stops the compute stream until `time`, because of `unit`.
  void wait(double time, int unit) {
    if (time <= compute_end_) return;
    const double still = time - compute_end_;
    result_.exposed += still;
    if (unit >= 0) result_.exposed_of_unit[static_cast<size_t>(unit)] += still;
    compute_end_ = time;
  }

  // Computes; during communication it is slower by the contention.
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
