#include "runtime/plan/saved_slices.h"

#include "kernels/base/overlap.h"

namespace ofsdp::runtime {
namespace {

class SliceLister {
 public:
  SliceLister(const RunPlan& plan, const Graph& graph, int rank, CheckpointType type)
      : plan_(plan), graph_(graph), rank_(rank), type_(type), states_(state_names(plan)) {}

  std::vector<SavedSlice> list() {
    const int states = static_cast<int>(states_.size());
    for (const Unit& unit : plan_.plan.units) {
      for (int state = -1; state < states; ++state) add_unit(unit, state);
    }
    for (const KeptPlan::Entry* entry : carried_entries(plan_)) {
      const std::string& name = graph_.parameters[static_cast<size_t>(entry->parameter)].name;
      slices_.push_back({.slice = {kStatisticKind, name, 0, entry->desc.numel(), 0, {}},
                         .shape = entry->desc.shape,
                         .parameter = entry->parameter,
                         .statistic = entry});
    }
    return std::move(slices_);
  }

 private:
  void add_unit(const Unit& unit, int state) {
    const std::string kind = state < 0 ? kParameterKind : states_[static_cast<size_t>(state)];
    const Span held = plan_.plan.owned(unit, rank_);
    if (type_ == CheckpointType::kLocal) {
      slices_.push_back({.slice = {kind, std::to_string(unit.id), held.begin, held.numel, 0, {}},
                         .shape = Shape{unit.padded_numel},
                         .unit = unit.id,
                         .state = state});
      return;
    }
    const Span share = plan_.plan.represented(unit, rank_);
    const auto add = [&](const UnitParam& p, int64_t first, int64_t at, int64_t count) -> Status {
      const Parameter& parameter = graph_.parameters[static_cast<size_t>(p.parameter)];
      slices_.push_back({.slice = {kind, parameter.name, first, count, 0, {}},
                         .shape = graph_.value(parameter.value).desc.shape,
                         .parameter = p.parameter,
                         .unit = unit.id,
                         .state = state,
                         .at = share.begin + at - held.begin});
      return {};
    };
    (void)for_each_part(unit.params, share.begin, share.numel, add);  // which cannot fail
  }

  const RunPlan& plan_;
  const Graph& graph_;
  const int rank_;
  const CheckpointType type_;
  const std::vector<std::string> states_;
  std::vector<SavedSlice> slices_;
};

}  // namespace

std::vector<SavedSlice> saved_slices(const RunPlan& plan, const Graph& graph, int rank,
                                     CheckpointType type) {
  return SliceLister(plan, graph, rank, type).list();
}

size_t staged_bytes(const std::vector<SavedSlice>& slices) {
  int64_t bytes = 0;
  for (const SavedSlice& s : slices) bytes += s.slice.bytes();
  return static_cast<size_t>(bytes);
}

std::vector<std::string> state_names(const RunPlan& plan) { return plan.updates.states; }

}  // namespace ofsdp::runtime
