#include "runtime/compile/program/schedule.h"

#include <algorithm>
#include <array>
#include <map>

#include "fsdp/plan/plan.h"
#include "importer/graph/graph.h"
#include "kernels/base/hash.h"
#include "kernels/base/text.h"
#include "runtime/compile/program/arena_map.h"

namespace ofsdp::runtime {
namespace {

constexpr std::array kTraits = [] {
  using enum StepSubject;
  enum : unsigned { kCommunicates = 1, kWaits = 2, kTraced = 4, kOnDevice = 8 };
  const auto row = [](const char* name, StepSubject subject, unsigned traits,
                      const char* description) {
    return StepTraits{name,
                      subject,
                      (traits & kCommunicates) != 0,
                      (traits & kWaits) != 0,
                      (traits & kTraced) != 0,
                      (traits & kOnDevice) != 0,
                      description};
  };
  return std::array{
#define STEP(kind, subject, traits, timing, lowering, description) \
  row(#kind, subject, traits, description),
#include "runtime/compile/program/steps.inc"
  };
}();

// --- Positions of steps other than Run

// Steps by position; each list is in order.
struct StepPlaces {
  using Steps = std::vector<Step>;
  explicit StepPlaces(size_t nodes) : before(nodes + 1), after(nodes + 1) {}

  std::vector<Steps> before;  // per node, and one past the last
  std::vector<Steps> after;
  Steps tail;  // after all nodes
};

// The nodes from `first` to `last` that use a unit; first is -1 if none does.
struct UnitNodes {
  int unit;
  int first = -1;
  int last = -1;
};

// Returns for each unit the first and last reader among nodes [begin, end).
std::vector<UnitNodes> readers_of_units(const Graph& graph, const Plan& plan, int begin, int end) {
  const auto parameter = parameter_behind(graph);
  const auto unit = unit_of_parameter(graph, plan);
  std::vector<UnitNodes> result;
  for (const Unit& u : plan.units) result.push_back({u.id});
  for (int n = begin; n < end; ++n) {
    if (graph.nodes[static_cast<size_t>(n)].op->view) continue;
    for (ValueId id : graph.nodes[static_cast<size_t>(n)].inputs) {
      const int p = parameter[static_cast<size_t>(id)];
      if (p < 0 || unit[static_cast<size_t>(p)] < 0) continue;
      UnitNodes& use = result[static_cast<size_t>(unit[static_cast<size_t>(p)])];
      if (use.first < 0) use.first = n;
      use.last = n;
    }
  }
  return result;
}

// Places Gather and Free around each stretch of nodes that reads a unit; the prefetch policy moves
// Gather ahead ([Note: prefetch and memory]). Stretches are sorted by their first node.
class GatherPlacer {
 public:
  GatherPlacer(const Graph& graph, const Plan& plan, const CompileOptions& options,
               StepPlaces& places)
      : plan_(plan),
        options_(options),
        places_(places),
        forward_end_(forward_end(graph)),
        forward_(readers_of_units(graph, plan, 0, forward_end_)),
        backward_(
            readers_of_units(graph, plan, forward_end_, static_cast<int>(graph.nodes.size()))) {}

  void run() {
    for (const Unit& unit : plan_.units) {
      if (unit.plan.unshard != Unshard::kNone && !unit.plan.common) add_stretches(unit);
    }
    std::ranges::stable_sort(list_, {}, &UnitNodes::first);
    for (size_t k = 0; k < list_.size(); ++k) {
      const Unit& unit = unit_of(list_[k]);
      if (unit.plan.residency == Residency::kUpdate && !options_.first_micro) continue;
      gather_before(k);
      if (unit.plan.residency == Residency::kUpdate) continue;
      places_.after[static_cast<size_t>(list_[k].last)].push_back({StepKind::kFree, unit.id});
    }
  }

 private:
  const Unit& unit_of(const UnitNodes& stretch) const {
    return plan_.units[static_cast<size_t>(stretch.unit)];
  }

  void add_stretches(const Unit& unit) {
    const UnitNodes& f = forward_[static_cast<size_t>(unit.id)];
    const UnitNodes& b = backward_[static_cast<size_t>(unit.id)];
    if (f.first < 0 && b.first < 0) return;
    if (f.first >= 0 && b.first >= 0 && unit.plan.residency == Residency::kPass &&
        !adjacent(f, b)) {
      list_.push_back(f);
      list_.push_back(b);
      return;
    }
    list_.push_back({unit.id, f.first >= 0 ? f.first : b.first, b.first >= 0 ? b.last : f.last});
  }

  // Returns whether no other unit is needed between forward and backward: a Free would be undone at
  // once.
  bool adjacent(const UnitNodes& f, const UnitNodes& b) const {
    auto between = [&](const UnitNodes& use) {
      return use.unit != f.unit && use.first >= 0 && use.last > f.last && use.first < b.first;
    };
    return std::ranges::none_of(forward_, between) && std::ranges::none_of(backward_, between);
  }

  // Places the Gather before stretch k, or earlier by the prefetch policy.
  void gather_before(size_t k) {
    const UnitNodes& use = list_[k];
    const bool forward = use.first < forward_end_;
    const bool none = forward ? !options_.prefetch.forward_prefetch
                              : options_.prefetch.backward_prefetch == BackwardPrefetch::kNone;
    const size_t ahead = none ? 0 : std::min(k, static_cast<size_t>(options_.prefetch.depth()));
    const UnitNodes& host = list_[k - ahead];
    const bool post =
        !forward && ahead > 0 && options_.prefetch.backward_prefetch == BackwardPrefetch::kPost;
    const int reads = forward ? host.first : first_in_backward(host);
    int place = std::min(post ? host.last + 1 : reads, use.first);
    // The unit's earlier stretches must have ended.
    for (size_t j = 0; j < k; ++j) {
      if (list_[j].unit == use.unit) place = std::max(place, list_[j].last + 1);
    }
    places_.before[static_cast<size_t>(place)].push_back({StepKind::kGather, use.unit});
  }

  // Returns the unit's first reader in backward.
  int first_in_backward(const UnitNodes& stretch) const {
    if (stretch.first >= forward_end_) return stretch.first;
    const int first = backward_[static_cast<size_t>(stretch.unit)].first;
    return first >= 0 && first <= stretch.last ? first : stretch.first;
  }

  const Plan& plan_;
  const CompileOptions& options_;
  StepPlaces& places_;
  int forward_end_;
  std::vector<UnitNodes> forward_, backward_;  // per unit
  std::vector<UnitNodes> list_;
};

// Returns the type in which nodes write the unit's gradients.
DType gradient_dtype(const Graph& graph, const Unit& unit) {
  for (const UnitParam& p : unit.params) {
    const ValueId gradient = graph.parameters[static_cast<size_t>(p.parameter)].gradient;
    if (gradient != 0) return graph.value(gradient).desc.dtype;
  }
  return unit.plan.gradient_dtype;
}

// Places Acquire, Accumulate, Post and everything after a Post, by the nodes that write a unit's
// gradients ([Note: two waits per unit]).
class ReductionPlacer {
 public:
  ReductionPlacer(const Graph& graph, const Plan& plan, const CompileOptions& options,
                  StepPlaces& places)
      : graph_(graph), plan_(plan), options_(options), places_(places) {}

  void run() {
    for (const UnitNodes& span : gradient_spans()) {
      const Unit& unit = plan_.units[static_cast<size_t>(span.unit)];
      if (unit.params.empty()) continue;  // all frozen
      places_.before[static_cast<size_t>(span.first)].push_back({StepKind::kAcquire, span.unit});
      Steps& done = places_.after[static_cast<size_t>(span.last)];
      if (accumulates(unit)) done.push_back({StepKind::kAccumulate, span.unit});
      if (!unit.plan.shards_gradients && !options_.last_micro) {
        if (!options_.on_device) advance(done);  // in every micro-batch at the same place
        continue;
      }
      done.push_back({StepKind::kPost, span.unit});
      if (options_.on_device) {
        for (const Steps& stage : stages_after_post(unit)) {
          done.insert(done.end(), stage.begin(), stage.end());
        }
        continue;
      }
      advance(done);
      underway_.push_back({stages_after_post(unit), 0});
    }
    while (!underway_.empty()) advance(places_.tail);
    if (!options_.last_micro) return;
    if (options_.clip) {
      places_.tail.push_back({StepKind::kClip, -1});
      of_all_units(StepKind::kUpdate);
    }
    for (size_t u = 0; u < options_.matrices.size(); ++u) {
      const int unit = static_cast<int>(u);
      if (options_.matrices[u].factors) places_.tail.push_back({StepKind::kFactor, unit});
      if (!options_.matrices[u].orthogonalizes) continue;
      places_.tail.push_back({StepKind::kOrthogonalize, unit});
    }
    if (options_.parameter_norms) places_.tail.push_back({StepKind::kTrust, -1});
    if (options_.parameter_norms || !options_.matrices.empty()) of_all_units(StepKind::kApply);
    if (options_.watch) places_.tail.push_back({StepKind::kWatch, -1});
  }

 private:
  using Steps = StepPlaces::Steps;

  void of_all_units(StepKind step) {
    for (const Unit& unit : plan_.units) {
      if (!unit.params.empty()) places_.tail.push_back({step, unit.id});
    }
  }

  // The remaining steps after a unit's Post. Each later end of a unit's gradients appends one
  // group.
  struct Underway {
    std::vector<Steps> stages;
    size_t next;
  };

  void advance(Steps& steps) {
    for (Underway& unit : underway_) {
      const Steps& stage = unit.stages[unit.next++];
      steps.insert(steps.end(), stage.begin(), stage.end());
    }
    std::erase_if(underway_, [](const Underway& u) { return u.next == u.stages.size(); });
  }

  bool accumulates(const Unit& unit) const {
    const bool other_type = unit.plan.gradient_dtype != gradient_dtype(graph_, unit);
    return other_type || (!unit.plan.shards_gradients && !options_.first_micro);
  }

  std::vector<Steps> stages_after_post(const Unit& unit) const {
    const bool update_now = options_.last_micro && !options_.clip;
    const Step update{StepKind::kUpdate, unit.id};
    const bool keeps = !options_.matrices.empty();
    Steps reduced{{update_now && !keeps ? StepKind::kReduceUpdate : StepKind::kReduce, unit.id}};
    if (update_now && keeps) reduced.push_back(update);
    if (plan_.across_ranks) return {reduced};
    Steps sum{{StepKind::kAllReduce, unit.id}};
    if (update_now) sum.push_back(update);
    const bool scatters = unit.plan.shards > 1 || unit.plan.shards_gradients;
    if (!scatters) return {sum};
    if (unit.plan.copies == 1) return {reduced};
    Steps reduce{{StepKind::kReduce, unit.id}};
    if (!options_.last_micro) return {reduce};
    reduce.push_back({StepKind::kPostShard, unit.id});
    return {reduce, sum};
  }

  // Returns for each unit the first node that writes a gradient or a part of one, and the last node
  // that writes or reads one (a parameter may copy the gradient of another). Sorted by the last
  // node.
  std::vector<UnitNodes> gradient_spans() const {
    const auto unit = unit_of_parameter(graph_, plan_);
    const auto storage = storage_of(graph_);
    std::map<ValueId, int> written;
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      if (unit[i] >= 0 && graph_.parameters[i].gradient != 0) {
        written[graph_.parameters[i].gradient] = unit[i];
      }
    }
    const int size = static_cast<int>(graph_.nodes.size());
    // The update overwrites parameters, so their last reader counts too.
    std::vector<UnitNodes> spans = readers_of_units(graph_, plan_, 0, size);
    for (UnitNodes& span : spans) span.first = -1;
    const auto span_of = [&](ValueId id) {
      const auto it = written.find(storage[static_cast<size_t>(id)]);
      return it == written.end() ? nullptr : &spans[static_cast<size_t>(it->second)];
    };
    for (int n = 0; n < size; ++n) {
      const Node& node = graph_.nodes[static_cast<size_t>(n)];
      for (ValueId id : node.outputs) {
        UnitNodes* const span = span_of(id);
        if (span == nullptr) continue;
        if (span->first < 0) span->first = n;
        span->last = std::max(span->last, n);
      }
      for (ValueId id : node.inputs) {
        if (UnitNodes* const span = span_of(id)) span->last = std::max(span->last, n);
      }
    }
    std::ranges::stable_sort(spans, {}, &UnitNodes::last);
    return spans;
  }

  const Graph& graph_;
  const Plan& plan_;
  const CompileOptions& options_;
  StepPlaces& places_;
  std::vector<Underway> underway_;
};

// Places PostRows and JoinRows for each ofsdp.JoinRows ([Note: rows of all ranks]).
void place_joins(const Graph& graph, StepPlaces& places) {
  const GraphUses uses(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!joins_rows(*node.op)) continue;
    const int index = static_cast<int>(n), maker = uses.maker(node.inputs[0]);
    StepPlaces::Steps& ready =
        maker < 0 ? places.before[n] : places.after[static_cast<size_t>(maker)];
    ready.push_back({StepKind::kPostRows, index});
    const auto& readers = uses.readers(node.outputs[0]);
    const size_t first = readers.empty() ? n : *std::ranges::min_element(readers);
    places.before[first].push_back({StepKind::kJoinRows, index});
  }
}

// Returns the node that computes the last loss term.
int maker_of_last_term(const Graph& graph) {
  const GraphUses uses(graph);
  int last = -1;
  for (const LossTerm& term : graph.terms) last = std::max(last, uses.maker(term.value));
  return last;
}

}  // namespace

const StepTraits& traits(StepKind kind) { return kTraits[static_cast<size_t>(kind)]; }

const char* step_name(StepKind kind) { return traits(kind).name; }

Schedule make_schedule(const Graph& graph, const Plan& plan, const CompileOptions& options) {
  StepPlaces places(graph.nodes.size());
  GatherPlacer(graph, plan, options, places).run();
  if (options.training) ReductionPlacer(graph, plan, options, places).run();
  place_joins(graph, places);
  Schedule schedule;
  auto append = [&](const StepPlaces::Steps& steps) {
    schedule.steps.insert(schedule.steps.end(), steps.begin(), steps.end());
  };
  const int last_term = maker_of_last_term(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    append(places.before[n]);
    const Node& node = graph.nodes[n];
    if (!node.op->view && !joins_rows(*node.op)) {
      schedule.steps.push_back({StepKind::kRun, static_cast<int>(n)});
    }
    if (static_cast<int>(n) == last_term) schedule.steps.push_back({StepKind::kCheckLoss, -1});
    append(places.after[n]);
  }
  append(places.before.back());
  // Under across_ranks only slice 0 updates running statistics: they must not depend on the number
  // of ranks.
  const bool carries = options.training && (options.first_micro || !plan.across_ranks);
  for (size_t k = 0; carries && k < graph.carried.size(); ++k) {
    schedule.steps.push_back({StepKind::kCarry, static_cast<int>(k)});
  }
  append(places.tail);
  return schedule;
}

std::vector<int> parameter_behind(const Graph& graph) {
  std::vector<int> parameter(graph.values.size(), -1);
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    parameter[static_cast<size_t>(graph.parameters[i].value)] = static_cast<int>(i);
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
    for (const UnitParam& p : u.frozen) unit[static_cast<size_t>(p.parameter)] = u.id;
  }
  return unit;
}

bool communicates(const Step& step) { return traits(step.kind).communicates; }

uint64_t collective_hash(const Schedule& schedule, const Plan& plan, uint64_t seed) {
  Fnv1a hash(seed);
  for (const Step& step : schedule.steps) {
    if (!communicates(step)) continue;
    hash.add(static_cast<uint64_t>(step.kind));
    hash.add(static_cast<uint64_t>(step.index + 1));
    if (step.index < 0 || traits(step.kind).subject != StepSubject::kUnit) continue;
    const Unit& unit = plan.units[static_cast<size_t>(step.index)];
    hash.add(static_cast<uint64_t>(unit.padded_numel));
    hash.add(static_cast<uint64_t>(unit.frozen_padded_numel));
  }
  return hash.value();
}

std::string step_table() {
  std::string out = "| step | meaning |\n| --- | --- |\n";
  for (const StepTraits& step : kTraits) {
    const char* subject = step.subject == StepSubject::kUnit   ? " u"
                          : step.subject == StepSubject::kNode ? " n"
                                                               : "";
    out += format_text("| `{}{}` | {} |\n", step.name, subject, step.description);
  }
  return out;
}

std::string text(const Schedule& schedule, const Graph& graph) {
  std::string out;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const StepSubject subject = traits(step.kind).subject;
    out += format_text("{:4} {}", i, step_name(step.kind));
    if (subject == StepSubject::kNode) {
      const Node& node = graph.nodes[static_cast<size_t>(step.index)];
      out += format_text(" n{} {} '{}'", step.index, escaped(node.op->full_name()),
                         escaped(node.name));
    } else if (subject == StepSubject::kBuffer) {
      const Carried& c = graph.carried[static_cast<size_t>(step.index)];
      out += " '" + escaped(graph.parameters[static_cast<size_t>(c.parameter)].name) + "'";
    } else if (step.index >= 0) {
      out += format_text(" u{}", step.index);
    }
    out += "\n";
  }
  return out;
}

}  // namespace ofsdp::runtime
