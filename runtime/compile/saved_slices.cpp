#include "runtime/compile/saved_slices.h"

#include <algorithm>

#include "kernels/base/overlap.h"
#include "runtime/engine/update_table.h"

namespace ofsdp::runtime {
namespace {

class SliceLister {
 public:
  SliceLister(const CompiledRun& plan, const Graph& graph, int rank, CheckpointType type)
      : plan_(plan),
        graph_(graph),
        rank_(rank),
        type_(type),
        states_(plan.updates.states),
        uneven_(!uneven_states(plan, graph).empty()) {}

  std::vector<SavedSlice> list() {
    const int states = static_cast<int>(states_.size());
    for (const Unit& unit : plan_.shards.units) {
      for (int state = -1; state < states; ++state) {
        state >= 0 && uneven_ ? add_state(unit, state) : add_unit(unit, state);
      }
    }
    for (const KeptValues::Entry* entry : carried_entries(plan_)) {
      const std::string& name = graph_.parameters[static_cast<size_t>(entry->parameter)].name;
      slices_.push_back({.slice = {kStatisticKind, name, 0, entry->desc.numel(), 0, {}},
                         .shape = entry->desc.shape,
                         .parameter = entry->parameter,
                         .statistic = entry});
    }
    return std::move(slices_);
  }

 private:
  void add_state(const Unit& unit, int state) {
    const auto parts =
        state_share(plan_.updates, unit, plan_.shards.owned(unit, rank_),
                    plan_.shards.represented(unit, rank_), static_cast<size_t>(state));
    for (const StatePart& part : parts) {
      const Parameter& parameter = graph_.parameters[static_cast<size_t>(part.param->parameter)];
      slices_.push_back(
          {.slice =
               {states_[static_cast<size_t>(state)], parameter.name, part.first, part.count, 0, {}},
           .shape = state_shape(plan_.updates.of(part.param->parameter), static_cast<size_t>(state),
                                graph_.value(parameter.value).desc.shape),
           .parameter = part.param->parameter,
           .unit = unit.id,
           .state = state,
           .form = plan_.updates.form_of(static_cast<size_t>(state)),
           .at = part.at});
    }
  }

  void add_unit(const Unit& unit, int state) {
    const std::string kind = state < 0 ? kParameterKind : states_[static_cast<size_t>(state)];
    const StateForm form =
        state < 0 ? StateForm::kFloat32 : plan_.updates.form_of(static_cast<size_t>(state));
    const Span held = plan_.shards.owned(unit, rank_);
    if (type_ == CheckpointType::kLocal) {
      slices_.push_back({.slice = {kind, std::to_string(unit.id), held.begin, held.numel, 0, {}},
                         .shape = Shape{unit.padded_numel},
                         .unit = unit.id,
                         .state = state,
                         .form = form});
      return;
    }
    const Span share = plan_.shards.represented(unit, rank_);
    const auto add = [&](const UnitParam& p, int64_t first, int64_t at, int64_t count) -> Status {
      const Parameter& parameter = graph_.parameters[static_cast<size_t>(p.parameter)];
      slices_.push_back({.slice = {kind, parameter.name, first, count, 0, {}},
                         .shape = graph_.value(parameter.value).desc.shape,
                         .parameter = p.parameter,
                         .unit = unit.id,
                         .state = state,
                         .form = form,
                         .at = share.begin + at - held.begin});
      return {};
    };
    (void)for_each_part(unit.params, share.begin, share.numel, add);  // cannot fail
  }

  const CompiledRun& plan_;
  const Graph& graph_;
  const int rank_;
  const CheckpointType type_;
  const std::vector<std::string> states_;
  const bool uneven_;
  std::vector<SavedSlice> slices_;
};

}  // namespace

std::vector<SavedSlice> saved_slices(const CompiledRun& plan, const Graph& graph, int rank,
                                     CheckpointType type) {
  return SliceLister(plan, graph, rank, type).list();
}

size_t staged_bytes(const std::vector<SavedSlice>& slices) {
  size_t bytes = 0;
  for (const SavedSlice& s : slices) bytes += staged_bytes(s);
  return bytes;
}

// Rounds up, so that the next slice is aligned for floats.
size_t staged_bytes(const SavedSlice& slice) {
  return align_up(stored_bytes(slice.form, slice.slice.count), sizeof(float));
}

size_t decoding_bytes(const std::vector<SavedSlice>& slices) {
  const bool any = std::ranges::any_of(
      slices, [](const SavedSlice& s) { return s.form != StateForm::kFloat32; });
  return any ? static_cast<size_t>(kChecksumBlock) : 0;
}

std::vector<StateTensor> state_tensors(const CompiledRun& plan, const Graph& graph) {
  std::vector<StateTensor> tensors;
  const UpdatePlan& updates = plan.updates;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& p = graph.parameters[i];
    if (!p.trained) continue;
    std::vector<size_t> states = updates.parameters[i].states;
    if (updates.average_decay) states.push_back(static_cast<size_t>(updates.average_state()));
    for (const size_t state : states) {
      tensors.push_back(
          {updates.states[state], p.name,
           state_shape(updates.parameters[i], state, graph.value(p.value).desc.shape)});
    }
  }
  return tensors;
}

std::vector<StateTensor> uneven_states(const CompiledRun& plan, const Graph& graph) {
  std::vector<StateTensor> tensors = state_tensors(plan, graph);
  const auto trained = std::ranges::count_if(graph.parameters, &Parameter::trained);
  const bool factored = std::ranges::any_of(plan.updates.parameters, &ParameterUpdate::factored);
  const bool all = tensors.size() == static_cast<size_t>(trained) * plan.updates.states.size();
  if (all && !factored) tensors.clear();
  return tensors;
}

}  // namespace ofsdp::runtime
