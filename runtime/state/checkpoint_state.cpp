#include "runtime/state/checkpoint_state.h"

#include <algorithm>
#include <set>

#include "fsdp/checkpoint/disk.h"
#include "importer/proto/graph_hash.h"
#include "runtime/state/run_state.h"

namespace ofsdp::runtime {
namespace {

const std::vector<std::string> states_of(const RunPlan& plan) {
  return plan.optimizer->state_names(plan.settings);
}

class SliceLister {
 public:
  SliceLister(const RunPlan& plan, const Graph& graph, int rank, CheckpointType type)
      : plan_(plan), graph_(graph), rank_(rank), type_(type), states_(states_of(plan)) {}

  std::vector<SavedSlice> list() {
    const int states = static_cast<int>(states_.size());
    for (const Unit& unit : plan_.plan.units) {
      for (int state = -1; state < states; ++state) add_unit(unit, state);
    }
    for (size_t i = 0; i < plan_.kept.entries().size(); ++i) add_statistic(i);
    return std::move(slices_);
  }

 private:
  const std::string kind(int state) const {
    return state < 0 ? kParameterKind : states_[static_cast<size_t>(state)];
  }

  void add_unit(const Unit& unit, int state) {
    const Span held = plan_.plan.owned(unit, rank_);
    if (type_ == CheckpointType::kLocal) {
      SavedSlice s;
      s.slice = {kind(state), std::to_string(unit.id), held.begin, held.numel, 0, {}};
      s.shape = Shape{unit.padded_numel};
      s.unit = unit.id;
      s.state = state;
      slices_.push_back(std::move(s));
      return;
    }
    const Span share = plan_.plan.represented(unit, rank_);
    for (const UnitParam& p : unit.params) {
      const int64_t begin = std::max(p.offset, share.begin);
      const int64_t end = std::min(p.offset + p.numel, share.begin + share.numel);
      if (begin >= end) continue;
      const Parameter& parameter = graph_.parameters[static_cast<size_t>(p.parameter)];
      SavedSlice s;
      s.slice = {kind(state), parameter.name, begin - p.offset, end - begin, 0, {}};
      s.shape = graph_.value(parameter.value).desc.shape;
      s.parameter = p.parameter;
      s.unit = unit.id;
      s.state = state;
      s.at = begin - held.begin;
      slices_.push_back(std::move(s));
    }
  }

  void add_statistic(size_t entry) {
    const KeptPlan::Entry& kept = plan_.kept.entries()[entry];
    if (kept.parameter < 0 || !is_carried(plan_, kept.parameter)) return;
    const Parameter& parameter = graph_.parameters[static_cast<size_t>(kept.parameter)];
    SavedSlice s;
    s.slice = {kStatisticKind, parameter.name, 0, kept.desc.numel(), 0, {}};
    s.shape = kept.desc.shape;
    s.parameter = kept.parameter;
    s.kept_entry = entry;
    slices_.push_back(std::move(s));
  }

  const RunPlan& plan_;
  const Graph& graph_;
  const int rank_;
  const CheckpointType type_;
  const std::vector<std::string> states_;
  std::vector<SavedSlice> slices_;
};

std::vector<NamedTensor> trained_of(const Graph& graph) {
  std::vector<NamedTensor> list;
  for (const Parameter& p : graph.parameters) {
    if (p.trained) list.push_back({p.name, graph.value(p.value).desc.shape});
  }
  return list;
}

std::string type_name(CheckpointType type) {
  if (type == CheckpointType::kFull) return "full";
  return type == CheckpointType::kLocal ? "local" : "sharded";
}

std::string schedule_text(const Options& options) {
  constexpr const char* kNames[] = {"constant", "step", "linear", "cosine", "polynomial"};
  const ScheduleOptions& s = options.schedule;
  return format_text("{}, {} warm-up steps, total {}, least {}, power {}, every {} {}, factor {}",
                     kNames[static_cast<size_t>(s.kind)], s.warmup_steps,
                     s.total_steps ? std::to_string(*s.total_steps) : "the run's", s.min_lr_ratio,
                     s.power, s.step_size, s.unit == ScheduleUnit::kEpoch ? "epochs" : "steps",
                     s.gamma);
}

// The first name that one has and the other has not, or that has another shape.
Status check_trained(const std::vector<NamedTensor>& saved, const std::vector<NamedTensor>& run) {
  std::map<std::string, Shape> left;
  for (const NamedTensor& tensor : saved) left.emplace(tensor.name, tensor.shape);
  for (const NamedTensor& tensor : run) {
    const auto found = left.find(tensor.name);
    if (found == left.end()) {
      return input_error("'{}' is trained in this run, but was not in the checkpoint", tensor.name);
    }
    if (!(found->second == tensor.shape)) {
      return input_error("'{}' has shape {}, in the checkpoint {}", tensor.name,
                         tensor.shape.text(), found->second.text());
    }
    left.erase(found);
  }
  if (left.empty()) return ok_status();
  return input_error("'{}' was trained in the checkpoint, but is not in this run",
                     left.begin()->first);
}

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

Manifest describe_run(const Options& options, const RunPlan& plan, const ModelSetup& setup) {
  constexpr const char* kWraps[] = {"transformer", "size", "none"};
  Manifest m;
  m.type = type_name(options.checkpoint.type);
  m.model = absolute_path(setup.file.path());
  m.graph = graph_hash(setup.file);
  m.world = plan.plan.world;
  m.strategy = strategy_name(plan.plan.strategy);
  m.wrap = kWraps[static_cast<size_t>(options.sharding.wrap)];
  const SamplerOptions& sampler = plan.train_sampler[0].options();
  m.sampler = {0,
               0,
               sampler.samples,
               sampler.global_batch(),
               sampler.seed,
               sampler.shuffle,
               sampler.drop_last};
  m.schedule = schedule_text(options);
  m.lr = options.optimizer.lr;
  m.optimizer = plan.optimizer->name;
  m.states = states_of(plan);
  m.trained = trained_of(setup.graph);
  for (const KeptPlan::Entry& kept : plan.kept.entries()) {
    if (kept.parameter < 0 || !is_carried(plan, kept.parameter)) continue;
    m.statistics.push_back(
        {setup.graph.parameters[static_cast<size_t>(kept.parameter)].name, kept.desc.shape});
  }
  for (const Unit& unit : plan.plan.units) {
    UnitLayout layout{unit.padded_numel, {}};
    for (const UnitParam& p : unit.params) layout.params.push_back({p.name, p.offset, p.numel});
    m.units.push_back(std::move(layout));
  }
  return m;
}

Status check_resumable(const Manifest& m, const Options&, const ModelSetup& setup,
                       const std::vector<std::string>& states) {
  if (const std::string hash = graph_hash(setup.file); m.graph != hash) {
    return input_error("it is of another graph than {} (hash {}, found {}): it was made from {}",
                       setup.file.path(), m.graph, hash, m.model);
  }
  OFSDP_RETURN_IF_ERROR(check_trained(m.trained, trained_of(setup.graph)));
  if (std::set(m.states.begin(), m.states.end()) == std::set(states.begin(), states.end())) {
    return ok_status();
  }
  return input_error("its optimizer is {} with states [{}], this run's has [{}]", m.optimizer,
                     joined(m.states, ", "), joined(states, ", "));
}

Status load_state(CheckpointReader& reader, const RunPlan& plan, RunState& state, int rank) {
  const std::vector<std::string> states = states_of(plan);
  for (const Unit& unit : plan.plan.units) {
    const Span span = plan.plan.owned(unit, rank);
    for (int i = -1; i < static_cast<int>(states.size()); ++i) {
      const std::string kind = i < 0 ? kParameterKind : states[static_cast<size_t>(i)];
      float* base = state.held(unit.id, i);
      for (const UnitParam& p : unit.params) {
        const int64_t begin = std::max(p.offset, span.begin);
        const int64_t end = std::min(p.offset + p.numel, span.begin + span.numel);
        if (begin >= end) continue;
        OFSDP_RETURN_IF_ERROR(
            reader.read(kind, p.name, begin - p.offset,
                        {base + (begin - span.begin), static_cast<size_t>(end - begin)}));
      }
    }
  }
  const int from = reader.manifest().world == plan.plan.world ? rank : 0;
  for (const KeptPlan::Entry& kept : plan.kept.entries()) {
    if (kept.parameter < 0 || !is_carried(plan, kept.parameter)) continue;
    OFSDP_RETURN_IF_ERROR(
        reader.read_statistic(state.parameter_name(kept.parameter), from, state.kept(kept)));
  }
  return ok_status();
}

}  // namespace ofsdp::runtime
