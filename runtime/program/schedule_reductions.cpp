#include <algorithm>
#include <map>

#include "runtime/program/schedule_places.h"
#include "runtime/program/value_storage.h"

namespace ofsdp::runtime {
namespace {

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
      if (!unit.plan.shards_gradients && !options_.last_micro) continue;
      done.push_back({StepKind::kPost, span.unit});
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

  // A unit whose slot is posted: what is still to be done, in groups; one group at each later Post.
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
    const bool other_type = unit.plan.gradient_dtype != plan_.param_dtype;
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

  // Per unit the first node that writes one of its gradients or a part of one, and the node after
  // which all are complete and read for the last time (a parameter may copy the gradient of
  // another); in the order of completion.
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
    // The update overwrites parameters, so a unit is done only after the last use of these as well.
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

}  // namespace

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

void place_reductions(const Graph& graph, const Plan& plan, const CompileOptions& options,
                      StepPlaces& places) {
  ReductionPlacer(graph, plan, options, places).run();
}

}  // namespace ofsdp::runtime
