#include "runtime/state/checkpoint_state.h"

#include <algorithm>
#include <set>

#include "fsdp/checkpoint/disk.h"
#include "importer/proto/graph_hash.h"
#include "runtime/plan/saved_slices.h"

namespace ofsdp::runtime {
namespace {

std::vector<NamedTensor> trained_of(const Graph& graph) {
  std::vector<NamedTensor> list;
  for (const Parameter& p : graph.parameters) {
    if (p.trained) list.push_back({p.name, graph.value(p.value).desc.shape});
  }
  return list;
}

// Returns the numbers that only this kind has.
std::string own_numbers(const ScheduleOptions& s) {
  const auto or_none = [](const std::optional<int64_t>& n) { return n ? std::to_string(*n) : "-"; };
  switch (s.kind) {
    case ScheduleKind::kMultistep: {
      std::string text = ", at";
      for (const int64_t at : s.milestones) text += " " + std::to_string(at);
      return text;
    }
    case ScheduleKind::kWsd:
      return ", decay " + or_none(s.decay_steps);
    case ScheduleKind::kCosineRestarts:
      return format_text(", cycle {}, times {}", or_none(s.restart_steps), s.restart_mult);
    case ScheduleKind::kOneCycle:
      return format_text(", top at {}, over {} and {}", s.pct_start, s.div_factor,
                         s.final_div_factor);
    default:
      return "";
  }
}

std::string schedule_text(const ScheduleOptions& s) {
  return format_text(
      "{}, {} warm-up steps, total {}, least {}, power {}, every {} {}s, factor {}{}",
      name_of(s.kind), s.warmup_steps, s.total_steps ? std::to_string(*s.total_steps) : "the run's",
      s.min_lr_ratio, s.power, s.step_size, name_of(s.unit), s.gamma, own_numbers(s));
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

// Every state that the run has of a tensor is in the checkpoint, with its shape.
Status check_state_tensors(const Manifest& m, const RunPlan& plan, const Graph& graph) {
  std::map<std::pair<std::string, std::string>, Shape> saved;
  for (const StateTensor& tensor : states_of(m)) saved[{tensor.kind, tensor.name}] = tensor.shape;
  for (const StateTensor& tensor : state_tensors(plan, graph)) {
    const auto found = saved.find({tensor.kind, tensor.name});
    if (found == saved.end()) {
      return input_error("it has no {} of '{}', which this run's optimizer of it needs",
                         tensor.kind, tensor.name);
    }
    if (found->second == tensor.shape) continue;
    return input_error("its {} of '{}' has shape {}, this run's {}", tensor.kind, tensor.name,
                       found->second.text(), tensor.shape.text());
  }
  return ok_status();
}

std::string identity_of_teacher(const ModelSetup& setup) {
  const Teacher* teacher = setup.source->teacher();
  return teacher == nullptr ? "" : teacher->identity;
}

}  // namespace

Manifest describe_run(const Options& options, const RunPlan& plan, const ModelSetup& setup) {
  const SamplerOptions& sampler = plan.train_sampler->options();
  Manifest m;
  m.type = name_of(options.checkpoint.type);
  m.model = absolute_path(setup.file.path());
  m.graph = graph_hash(setup.file);
  m.edits = text_of(edits_of(options));
  m.teacher = identity_of_teacher(setup);
  m.world = plan.plan.world;
  m.strategy = name_of(plan.plan.strategy);
  m.wrap = name_of(options.sharding.wrap);
  m.sampler = {.samples = sampler.samples,
               .global_batch = sampler.global_batch(),
               .seed = sampler.seed,
               .shuffle = sampler.shuffle,
               .drop_last = sampler.drop_last};
  m.schedule = schedule_text(options.schedule);
  m.lr = options.optimizer.lr;
  m.optimizer = plan.optimizer->name;
  m.states = state_names(plan);
  m.trained = trained_of(setup.graph);
  m.state_tensors = uneven_states(plan, setup.graph);
  for (const KeptPlan::Entry* entry : carried_entries(plan)) {
    m.statistics.push_back(
        {setup.graph.parameters[static_cast<size_t>(entry->parameter)].name, entry->desc.shape});
  }
  for (const Unit& unit : plan.plan.units) {
    UnitLayout layout{unit.padded_numel, {}};
    for (const UnitParam& p : unit.params) layout.params.push_back({p.name, p.offset, p.numel});
    m.units.push_back(std::move(layout));
  }
  return m;
}

Status check_resumable(const Manifest& m, const RunPlan& plan, const ModelSetup& setup) {
  if (const std::string hash = graph_hash(setup.file); m.graph != hash) {
    return input_error("it is of another graph than {} (hash {}, found {}): it was made from {}",
                       setup.file.path(), m.graph, hash, m.model);
  }
  if (!plan.evaluated.empty()) return ok_status();  // weights alone, each by its name
  const std::string teacher = identity_of_teacher(setup);
  if (m.teacher != teacher) {
    const auto named = [](const std::string& one) { return one.empty() ? "none" : one; };
    return input_error("it has another --teacher than this run: expected {}, found {}",
                       named(m.teacher), named(teacher));
  }
  OFSDP_RETURN_IF_ERROR(check_trained(m.trained, trained_of(setup.graph)));
  const std::vector<std::string> states = state_names(plan);
  if (std::set(m.states.begin(), m.states.end()) == std::set(states.begin(), states.end())) {
    return check_state_tensors(m, plan, setup.graph);
  }
  return input_error("its optimizer is {} with states [{}], this run's has [{}]", m.optimizer,
                     joined(m.states, ", "), joined(states, ", "));
}

Status load_checkpoint(CheckpointReader& reader, const RankState& state) {
  const RunPlan& plan = state.plan();
  const std::vector<std::string> states = state_names(plan);
  for (const Unit& unit : plan.plan.units) {
    const auto read = [&](const std::string& kind) {
      return [&reader, kind](const ShardPart& part) {
        return reader.read(kind, part.param.name, part.first, part.values);
      };
    };
    OFSDP_RETURN_IF_ERROR(state.held(unit, -1).for_each_part(read(kParameterKind)));
    for (size_t i = 0; i < states.size(); ++i) {
      OFSDP_RETURN_IF_ERROR(state.each_state(unit, static_cast<int>(i), read(states[i])));
    }
  }
  const int from = reader.manifest().world == plan.plan.world ? state.rank() : 0;
  for (const KeptPlan::Entry* entry : carried_entries(plan)) {
    OFSDP_RETURN_IF_ERROR(reader.read_statistic(state.parameter(entry->parameter).name, from,
                                                state.statistic(*entry)));
  }
  return ok_status();
}

}  // namespace ofsdp::runtime
