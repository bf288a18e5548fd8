#include "runtime/compile/simulate.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <variant>

#include "kernels/base/text.h"

namespace ofsdp::runtime {

namespace {

constexpr int kMaxHosts = 1 << 20;

class TopologyReader {
 public:
  explicit TopologyReader(const std::string& origin) : origin_(origin) {}

  Result<Topology> read(const YAML::Node& root) {
    OFSDP_RETURN_IF_ERROR(read_map(root, "",
                                   {{"hosts", &topology_.hosts},
                                    {"ranks_per_host", &topology_.ranks_per_host},
                                    {"inside", &topology_.inside},
                                    {"between", &topology_.between},
                                    {"compute_factor", &topology_.compute_factor},
                                    {"contention", &topology_.contention},
                                    {"overlap", &topology_.overlap}}));
    OFSDP_RETURN_IF_ERROR(need(topology_.ranks_per_host < 2 || root["inside"], "inside"));
    OFSDP_RETURN_IF_ERROR(need(topology_.hosts < 2 || root["between"], "between"));
    return topology_;
  }

 private:
  using Targets = std::map<std::string, std::variant<int*, double*, bool*, Link*>>;

  Status read_map(const YAML::Node& node, const std::string& where, const Targets& targets) const {
    if (!node.IsMap()) return input_error("{}: {}expected a mapping", origin_, where);
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const auto key = entry.first.as<std::string>();
      if (!seen.insert(key).second) {
        return input_error("{} line {}: {}'{}' stands here twice", origin_,
                           entry.first.Mark().line + 1, where, key);
      }
      const auto target = targets.find(key);
      if (target == targets.end())
        return input_error("{}: {}unknown key '{}'", origin_, where, key);
      OFSDP_RETURN_IF_ERROR(
          std::visit([&](auto* value) { return read_value(where + key, entry.second, *value); },
                     target->second));
    }
    return {};
  }

  Status need(bool there, const std::string& key) const {
    return there ? Status{}
                 : input_error("{}: expected {}: {{alpha_us: , beta_gbs: }}, found nothing",
                               origin_, key);
  }

  Status wrong(const std::string& key, const char* expected, const YAML::Node& node) const {
    return input_error("{}: {}: expected {}, found '{}'{}", origin_, key, expected, shown(node),
                       out_of_range_hint(shown(node)));
  }

  Status read_value(const std::string& key, const YAML::Node& node, double& value) const {
    if (YAML::convert<double>::decode(node, value) && value > 0 && std::isfinite(value)) return {};
    return wrong(key, "a number above 0", node);
  }

  Status read_value(const std::string& key, const YAML::Node& node, int& value) const {
    if (YAML::convert<int>::decode(node, value) && value >= 1 && value <= kMaxHosts) return {};
    return wrong(key, "a whole number of at least 1", node);
  }

  Status read_value(const std::string& key, const YAML::Node& node, bool& value) const {
    return YAML::convert<bool>::decode(node, value) ? Status{} : wrong(key, "on or off", node);
  }

  Status read_value(const std::string& key, const YAML::Node& node, Link& link) const {
    double alpha_us = 0, beta_gbs = 0;
    OFSDP_RETURN_IF_ERROR(
        read_map(node, key + ": ", {{"alpha_us", &alpha_us}, {"beta_gbs", &beta_gbs}}));
    OFSDP_RETURN_IF_ERROR(need(alpha_us > 0 && beta_gbs > 0, key));
    link = {alpha_us * 1e-6, beta_gbs * 1e9};
    return {};
  }

  static std::string shown(const YAML::Node& node) {
    return node.IsScalar() ? node.Scalar() : YAML::Dump(node);
  }

  const std::string& origin_;
  Topology topology_;
};

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
#include "runtime/compile/program/steps.inc"
    }
  }

  // --- The column `timing` of steps.inc; s: the step, i: Step::index.

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

  // Stops the compute stream until `time`, on account of `unit`; -1: no unit.
  void wait(double time, int unit) {
    if (time <= compute_end_) return;
    const double still = time - compute_end_;
    result_.exposed += still;
    if (unit >= 0) result_.exposed_of_unit[static_cast<size_t>(unit)] += still;
    compute_end_ = time;
  }

  // Communication under way slows the computation by the factor `contention`.
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
  std::vector<double> gathered_, posted_, reduced_;  // per unit: seconds
  std::vector<std::pair<int, size_t>> updates_;      // step and unit, to run after the last node
  double compute_end_ = 0, communication_end_ = 0;
  int last_unit_ = -1;  // the latest to communicate
  Simulation result_;
};

}  // namespace

int Topology::hosts_of(const RankGroup& group) const {
  const int first = group.first / ranks_per_host;
  const int last = group.rank(group.count - 1) / ranks_per_host;
  return std::min(last - first + 1, group.count);
}

double Topology::all_gather(const RankGroup& group, double bytes) const {
  if (group.count < 2) return 0;
  const int crossing = hosts_of(group) - 1, steps = group.count - 1;
  double beta = between.beta;
  if (crossing == 0) beta = inside.beta;
  if (crossing > 0 && crossing < steps) beta = std::min(inside.beta, between.beta);
  return crossing * between.alpha + (steps - crossing) * inside.alpha +
         bytes * steps / group.count / beta;
}

Result<Topology> parse_topology(const std::string& yaml, const std::string& origin) {
  try {
    return TopologyReader(origin).read(YAML::Load(yaml));
  } catch (const YAML::Exception& error) {
    return input_error("{}:{}: {}", origin, error.mark.line + 1, error.msg);
  }
}

Result<Topology> read_topology(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) return input_error("--topology {}: cannot be read", path);
  return parse_topology(text.str(), path);
}

Simulation simulate(const Graph& graph, const Plan& plan, const Schedule& schedule,
                    const GradientSlots& slots, const std::vector<StepCost>& costs,
                    const SimulationOptions& options) {
  return Simulator(graph, plan, schedule, slots, costs, options).run();
}

}  // namespace ofsdp::runtime
