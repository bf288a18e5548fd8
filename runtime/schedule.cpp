#include "runtime/schedule.h"

#include <algorithm>
#include <map>

namespace ofsdp {
namespace {

// A stretch of nodes during which a unit stays gathered.
struct Residency {
  int unit;
  int first;  // node indices, inclusive
  int last;
  int backward_first = -1;  // of one that spans forward and backward: where its backward begins
};

class Compiler {
 public:
  Compiler(const Graph& graph, const Plan& plan, const CompileOptions& options)
      : graph_(graph),
        plan_(plan),
        options_(options),
        before_(graph.nodes.size() + 1),
        after_(graph.nodes.size() + 1) {
    while (forward_end_ < size() && !graph.nodes[static_cast<size_t>(forward_end_)].backward) {
      ++forward_end_;
    }
  }

  Schedule run() {
    if (plan_.gathers()) place_residencies(residencies());
    if (options_.training) place_gradients();
    for (int n = 0; n < size(); ++n) {
      append(before_[static_cast<size_t>(n)]);
      const Node& node = graph_.nodes[static_cast<size_t>(n)];
      if (!node.op->view) schedule_.steps.push_back({StepKind::kRun, n});
      if (std::ranges::find(node.outputs, graph_.loss) != node.outputs.end()) {
        schedule_.steps.push_back({StepKind::kCheckLoss, -1});
      }
      append(after_[static_cast<size_t>(n)]);
    }
    for (size_t k = 0; options_.training && k < graph_.carried.size(); ++k) {
      schedule_.steps.push_back({StepKind::kCarry, static_cast<int>(k)});
    }
    append(tail_);
    return std::move(schedule_);
  }

 private:
  using Steps = std::vector<Step>;

  int size() const { return static_cast<int>(graph_.nodes.size()); }

  void append(const Steps& steps) {
    schedule_.steps.insert(schedule_.steps.end(), steps.begin(), steps.end());
  }

  // First and last use of each unit in nodes [begin, end); first is -1 without one.
  std::vector<Residency> uses(int begin, int end) const {
    const auto parameter = parameter_behind(graph_);
    const auto unit = unit_of_parameter(graph_, plan_);
    std::vector<Residency> result;
    for (size_t u = 0; u < plan_.units.size(); ++u) result.push_back({static_cast<int>(u), -1, -1});
    for (int n = begin; n < end; ++n) {
      if (graph_.nodes[static_cast<size_t>(n)].op->view) continue;
      for (ValueId id : graph_.nodes[static_cast<size_t>(n)].inputs) {
        const int p = parameter[static_cast<size_t>(id)];
        if (p < 0 || unit[static_cast<size_t>(p)] < 0) continue;
        Residency& use = result[static_cast<size_t>(unit[static_cast<size_t>(p)])];
        if (use.first < 0) use.first = n;
        use.last = n;
      }
    }
    return result;
  }

  std::vector<Residency> residencies() const {
    std::vector<Residency> list;
    const auto forward = uses(0, forward_end_);
    const auto backward = uses(forward_end_, size());
    for (size_t u = 0; u < plan_.units.size(); ++u) {
      const Residency& f = forward[u];
      const Residency& b = backward[u];
      const bool split = f.first >= 0 && b.first >= 0 &&
                         plan_.reshards_after_forward(static_cast<int>(u)) &&
                         !adjacent(f, b, forward, backward);
      if (split) list.push_back(f);
      if (split) list.push_back(b);
      if (split || (f.first < 0 && b.first < 0)) continue;
      list.push_back(
          {static_cast<int>(u), f.first >= 0 ? f.first : b.first, b.first >= 0 ? b.last : f.last});
    }
    std::ranges::sort(list,
                      [](const Residency& a, const Residency& b) { return a.first < b.first; });
    return list;
  }

  // Between a unit's forward and its backward no other unit is needed: freeing it would be undone
  // at once.
  static bool adjacent(const Residency& f, const Residency& b,
                       const std::vector<Residency>& forward,
                       const std::vector<Residency>& backward) {
    auto between = [&](const Residency& use) {
      return use.unit != f.unit && use.first >= 0 && use.last > f.last && use.first < b.first;
    };
    return std::ranges::none_of(forward, between) && std::ranges::none_of(backward, between);
  }

  void place_residencies(const std::vector<Residency>& list) {
    for (size_t k = 0; k < list.size(); ++k) {
      gather_before(list, k);
      after_[static_cast<size_t>(list[k].last)].push_back({StepKind::kFree, list[k].unit});
    }
  }

  // A Gather stands before the first use, or as far ahead as the prefetch policy says.
  void gather_before(const std::vector<Residency>& list, size_t k) {
    const Residency& use = list[k];
    const bool forward = use.first < forward_end_;
    const bool none = forward ? !options_.forward_prefetch
                              : options_.backward_prefetch == BackwardPrefetch::kNone;
    const size_t ahead = none ? 0 : std::min(k, static_cast<size_t>(options_.prefetch_depth));
    const Residency& host = list[k - ahead];
    const bool post =
        !forward && ahead > 0 && options_.backward_prefetch == BackwardPrefetch::kPost;
    const int host_first = forward ? host.first : std::max(host.first, host.backward_first);
    int place = post ? std::min(host.last + 1, use.first) : host_first;
    // The same unit's earlier residency must have ended.
    for (size_t j = 0; j < k; ++j) {
      if (list[j].unit == use.unit) place = std::max(place, list[j].last + 1);
    }
    before_[static_cast<size_t>(place)].push_back({StepKind::kGather, use.unit});
  }

  // Per unit the first node that writes one of its gradients, and the node after which all are
  // complete.
  std::vector<Residency> gradient_spans() const {
    const auto unit = unit_of_parameter(graph_, plan_);
    std::map<ValueId, int> written;
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (unit[i] >= 0 && graph_.parameters[i].gradient != 0) {
        written[graph_.parameters[i].gradient] = unit[i];
      }
    }
    std::vector<Residency> spans;
    for (size_t u = 0; u < plan_.units.size(); ++u) spans.push_back({static_cast<int>(u), -1, -1});
    for (int n = 0; n < size(); ++n) {
      for (ValueId id : graph_.nodes[static_cast<size_t>(n)].outputs) {
        const auto it = written.find(id);
        if (it == written.end()) continue;
        Residency& span = spans[static_cast<size_t>(it->second)];
        if (span.first < 0) span.first = n;
        span.last = n;
      }
    }
    // The update overwrites parameters, so a unit is done only after the last use of these as well.
    for (const Residency& use : uses(0, size())) {
      Residency& span = spans[static_cast<size_t>(use.unit)];
      span.last = std::max(span.last, use.last);
    }
    std::ranges::sort(spans,
                      [](const Residency& a, const Residency& b) { return a.last < b.last; });
    return spans;
  }

  void place_gradients() {
    int pending = -1;  // posted, not yet reduced
    for (const Residency& span : gradient_spans()) {
      before_[static_cast<size_t>(span.first)].push_back({StepKind::kAcquire, span.unit});
      Steps& done = after_[static_cast<size_t>(span.last)];
      if (!plan_.shards_gradients() && !options_.first_micro)
        done.push_back({StepKind::kAccumulate, span.unit});
      if (!communicates()) continue;
      done.push_back({StepKind::kPost, span.unit});
      if (pending >= 0) add_reduce(done, pending);
      pending = span.unit;
    }
    if (pending >= 0) add_reduce(tail_, pending);
    if (!options_.last_micro || !options_.clip) return;
    tail_.push_back({StepKind::kClip, -1});
    for (const Unit& unit : plan_.units) tail_.push_back({StepKind::kUpdate, unit.id});
  }

  bool communicates() const { return plan_.shards_gradients() || options_.last_micro; }

  void add_reduce(Steps& steps, int unit) const {
    const bool update_now = options_.last_micro && !options_.clip;
    if (!plan_.shards_gradients()) {
      steps.push_back({StepKind::kAllReduce, unit});
      if (update_now) steps.push_back({StepKind::kUpdate, unit});
    } else {
      steps.push_back({update_now ? StepKind::kReduceUpdate : StepKind::kReduce, unit});
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const CompileOptions& options_;
  int forward_end_ = 0;
  std::vector<Steps> before_;
  std::vector<Steps> after_;
  Steps tail_;
  Schedule schedule_;
};

const char* kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::kGather:
      return "Gather";
    case StepKind::kFree:
      return "Free";
    case StepKind::kRun:
      return "Run";
    case StepKind::kCheckLoss:
      return "CheckLoss";
    case StepKind::kCarry:
      return "Carry";
    case StepKind::kAcquire:
      return "Acquire";
    case StepKind::kAccumulate:
      return "Accumulate";
    case StepKind::kPost:
      return "Post";
    case StepKind::kReduce:
      return "Reduce";
    case StepKind::kAllReduce:
      return "AllReduce";
    case StepKind::kReduceUpdate:
      return "ReduceUpdate";
    case StepKind::kClip:
      return "Clip";
    case StepKind::kUpdate:
      return "Update";
  }
  return "";
}

}  // namespace

Schedule compile(const Graph& graph, const Plan& plan, const CompileOptions& options) {
  return Compiler(graph, plan, options).run();
}

std::vector<int> parameter_behind(const Graph& graph) {
  std::vector<int> parameter(graph.values.size(), -1);
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    if (graph.parameters[i].trained) {
      parameter[static_cast<size_t>(graph.parameters[i].value)] = static_cast<int>(i);
    }
  }
  for (const Node& node : graph.nodes) {
    if (!node.op->view) continue;
    parameter[static_cast<size_t>(node.outputs[0])] =
        parameter[static_cast<size_t>(node.inputs[0])];
  }
  return parameter;
}

std::vector<int> unit_of_parameter(const Graph& graph, const Plan& plan) {
  std::vector<int> unit(graph.parameters.size(), -1);
  for (const Unit& u : plan.units) {
    for (const UnitParam& p : u.params) unit[static_cast<size_t>(p.parameter)] = u.id;
  }
  return unit;
}

uint64_t collective_hash(const Schedule& schedule, const Plan& plan, uint64_t seed) {
  uint64_t hash = 14695981039346656037ull ^ seed;
  auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211ull; };
  for (const Step& step : schedule.steps) {
    const bool local = step.kind == StepKind::kRun || step.kind == StepKind::kCheckLoss ||
                       step.kind == StepKind::kFree || step.kind == StepKind::kCarry;
    if (local) continue;
    mix(static_cast<uint64_t>(step.kind));
    mix(static_cast<uint64_t>(step.index + 1));
    if (step.index >= 0)
      mix(static_cast<uint64_t>(plan.units[static_cast<size_t>(step.index)].padded_numel));
  }
  return hash;
}

std::string text(const Schedule& schedule, const Graph& graph) {
  std::string out;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    out += fmt::format("{:4} {}", i, kind_name(step.kind));
    if (step.kind == StepKind::kRun) {
      const Node& node = graph.nodes[static_cast<size_t>(step.index)];
      out += fmt::format(" n{} {} '{}'", step.index, node.op->full_name(), node.name);
    } else if (step.kind == StepKind::kCarry) {
      const Carried& c = graph.carried[static_cast<size_t>(step.index)];
      out += " '" + graph.parameters[static_cast<size_t>(c.parameter)].name + "'";
    } else if (step.index >= 0) {
      out += fmt::format(" u{}", step.index);
    }
    out += "\n";
  }
  return out;
}

}  // namespace ofsdp
