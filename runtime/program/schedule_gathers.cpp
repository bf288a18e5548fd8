#include <algorithm>

#include "runtime/program/schedule_places.h"

namespace ofsdp::runtime {
namespace {

// The stretches during which units stay gathered, in the order of their first use.
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

  // Between a unit's forward and its backward no other unit is needed: freeing it would be undone
  // at once.
  bool adjacent(const UnitNodes& f, const UnitNodes& b) const {
    auto between = [&](const UnitNodes& use) {
      return use.unit != f.unit && use.first >= 0 && use.last > f.last && use.first < b.first;
    };
    return std::ranges::none_of(forward_, between) && std::ranges::none_of(backward_, between);
  }

  // A Gather stands before the first use, or as far ahead as the prefetch policy says.
  void gather_before(size_t k) {
    const UnitNodes& use = list_[k];
    const bool forward = use.first < forward_end_;
    const bool none = forward ? !options_.forward_prefetch
                              : options_.backward_prefetch == BackwardPrefetch::kNone;
    const size_t ahead = none ? 0 : std::min(k, static_cast<size_t>(options_.prefetch_depth));
    const UnitNodes& host = list_[k - ahead];
    const bool post =
        !forward && ahead > 0 && options_.backward_prefetch == BackwardPrefetch::kPost;
    const int reads = forward ? host.first : first_in_backward(host);
    int place = std::min(post ? host.last + 1 : reads, use.first);
    // The same unit's earlier stretch must have ended.
    for (size_t j = 0; j < k; ++j) {
      if (list_[j].unit == use.unit) place = std::max(place, list_[j].last + 1);
    }
    places_.before[static_cast<size_t>(place)].push_back({StepKind::kGather, use.unit});
  }

  // For a stretch that began in forward: where backward needs its unit again.
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

}  // namespace

void place_gathers(const Graph& graph, const Plan& plan, const CompileOptions& options,
                   StepPlaces& places) {
  GatherPlacer(graph, plan, options, places).run();
}

}  // namespace ofsdp::runtime
