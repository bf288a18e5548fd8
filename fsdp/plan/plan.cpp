#include "fsdp/plan/plan.h"

#include <algorithm>
#include <set>

#include "kernels/base/escaped.h"
#include "kernels/base/readable.h"

namespace ofsdp::fsdp {
namespace {

int64_t align(int64_t numel, int64_t to) { return (numel + to - 1) / to * to; }

// Raw data take as many elements of the flat array as their bytes need.
void add_param(Unit& unit, const Graph& graph, int index, const PlanOptions& options) {
  const Parameter& p = graph.parameters[static_cast<size_t>(index)];
  const TensorDesc& desc = graph.value(p.value).desc;
  const auto element = static_cast<int64_t>(dtype_size(options.param_dtype));
  const int64_t numel =
      p.raw ? align(static_cast<int64_t>(desc.bytes()), element) / element : desc.numel();
  int64_t& padded = p.trained ? unit.padded_numel : unit.frozen_padded_numel;
  (p.trained ? unit.params : unit.frozen).push_back({index, p.name, padded, numel});
  if (p.trained) unit.numel += numel;
  padded = align(padded + numel, p.trained ? options.alignment : kParamAlignment);
}

// Smaller ones are kept whole: their values may be known while planning.
constexpr int64_t kLeastFrozen = 17;

// The graph with every parameter marked as trained that belongs into a unit.
Graph with_frozen(const Graph& graph, const PlanOptions& options) {
  const bool sharded = options.strategy != Strategy::kNoShard &&
                       options.strategy != Strategy::kZero1 && options.world > 1;
  Graph marked = graph;
  if (!sharded) return marked;
  const auto nodes = readers(graph, true);
  for (size_t i = 0; i < marked.parameters.size(); ++i) {
    Parameter& p = marked.parameters[i];
    const TensorDesc& desc = graph.value(p.value).desc;
    const bool carried = std::ranges::any_of(
        graph.carried, [&](const Carried& c) { return c.parameter == static_cast<int>(i); });
    const bool fits = (p.raw || desc.dtype == options.param_dtype) && desc.numel() >= kLeastFrozen;
    if (fits && !carried && !nodes[i].empty()) p.trained = true;
  }
  return marked;
}

int64_t bucket_numel(const PlanOptions& options) {
  const double bytes = options.bucket_mb * (1 << 20);
  return static_cast<int64_t>(bytes / static_cast<double>(dtype_size(options.param_dtype)));
}

UnitPlan plan_unit(const Plan& plan, const Unit& unit) {
  const bool whole = unit.replicated || plan.strategy == Strategy::kNoShard;
  const bool resharded =
      plan.strategy == Strategy::kFullShard || plan.strategy == Strategy::kHybridShard;
  UnitPlan made;
  made.shards = whole ? 1 : plan.shard_size;
  made.copies = plan.world / made.shards;
  if (plan.offload == CpuOffload::kParams) {
    made.unshard = Unshard::kFetch;
  } else if (made.shards > 1) {
    made.unshard = Unshard::kGather;
  } else if (plan.rest_dtype != plan.param_dtype) {
    made.rounded = plan.updates_round && unit.frozen_padded_numel == 0;
    made.unshard = made.rounded ? Unshard::kNone : Unshard::kConvert;
  }
  if (!whole && plan.strategy == Strategy::kZero1 && made.unshard != Unshard::kNone) {
    made.residency = Residency::kUpdate;
  } else if (resharded && unit.id != plan.root &&
             (made.shards > 1 || made.unshard == Unshard::kFetch)) {
    made.residency = Residency::kPass;
  }
  made.common = made.shards > 1 && plan.common_ranks % made.shards == 0 &&
                made.residency != Residency::kUpdate;
  if (made.common) made.unshard = Unshard::kNone;
  made.shards_gradients = plan.across_ranks || (!whole && plan.strategy != Strategy::kZero1);
  if (made.shards_gradients && !plan.wide_slots) made.gradient_dtype = plan.param_dtype;
  if (plan.across_ranks) {
    made.sum_over = SumOver::kWorld;
  } else if (made.shards == 1 && !made.shards_gradients) {
    made.sum_over = SumOver::kCopies;
  }
  made.sums_copies = !plan.across_ranks && made.copies > 1;
  return made;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> gaps(const Unit& unit) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  int64_t end = 0;
  for (const UnitParam& p : unit.params) {
    if (p.offset > end) spans.emplace_back(end, p.offset);
    end = p.offset + p.numel;
  }
  if (unit.padded_numel > end) spans.emplace_back(end, unit.padded_numel);
  return spans;
}

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridShardZero2;
}

RankGroup Plan::shard_group(const Unit& unit, int rank) const {
  const int count = unit.plan.shards;
  return {rank / count * count, count, 1};
}

RankGroup Plan::replica_group(const Unit& unit, int rank) const {
  const int count = unit.plan.shards;
  return {rank % count, world / count, count};
}

RankGroup Plan::summing_group(const Unit& unit, int rank) const {
  if (unit.plan.sum_over == SumOver::kWorld) return {0, world, 1};
  return unit.plan.sum_over == SumOver::kShards ? shard_group(unit, rank)
                                                : replica_group(unit, rank);
}

Span Plan::owned(const Unit& unit, int rank) const {
  const int64_t numel = owned_numel(unit);
  return {rank % unit.plan.shards * numel, numel};
}

Span Plan::owned_frozen(const Unit& unit, int rank) const {
  const int64_t numel = unit.frozen_padded_numel / unit.plan.shards;
  return {rank % unit.plan.shards * numel, numel};
}

Span Plan::represented(const Unit& unit, int rank) const {
  const int64_t numel = unit.padded_numel / world;
  return {owned(unit, rank).begin + rank / unit.plan.shards * numel, numel};
}

Result<Plan> make_plan(const Graph& graph, const PlanOptions& options) {
  OFSDP_ASSIGN_OR_RETURN(
      Partition parts,
      partition(with_frozen(graph, options), {options.wrap, options.min_params, options.wrap_layers,
                                              options.ignore, bucket_numel(options)}));
  Plan plan{
      .strategy = options.strategy,
      .world = options.world,
      .shard_size = is_hybrid(options.strategy) && options.shard_size > 0 ? options.shard_size
                                                                          : options.world,
      .param_dtype = options.param_dtype,
      .reduce_dtype = options.reduce_dtype,
      .rest_dtype = options.offload == CpuOffload::kNone ? DType::kFloat32 : options.param_dtype,
      .across_ranks = options.across_ranks,
      .wide_slots = options.wide_slots,
      .updates_round = options.updates_round,
      .offload = options.offload,
      .alignment = options.alignment,
      .common_ranks = options.common_ranks,
      .units = {},
      .notice = std::move(parts.notice)};
  const auto nodes = readers(graph, false);
  for (const ParameterGroup& group : parts.groups) {
    Unit unit;
    unit.id = static_cast<int>(plan.units.size());
    unit.name = group.name;
    std::set<int> reading;
    unit.replicated = group.kind == ParameterGroup::Kind::kReplicated;
    for (const int index : group.parameters) {
      const bool trained = graph.parameters[static_cast<size_t>(index)].trained;
      if (!trained && unit.replicated) continue;  // whole anyway
      add_param(unit, graph, index, options);
      const auto& some = nodes[static_cast<size_t>(index)];
      reading.insert(some.begin(), some.end());
    }
    unit.nodes = static_cast<int>(reading.size());
    unit.padded_numel = align(unit.padded_numel, options.alignment * options.world);
    unit.frozen_padded_numel = align(unit.frozen_padded_numel, kParamAlignment * options.world);
    if (unit.params.empty() && unit.frozen.empty()) continue;
    if (group.kind == ParameterGroup::Kind::kRoot) plan.root = unit.id;
    plan.units.push_back(std::move(unit));
  }
  for (Unit& unit : plan.units) unit.plan = plan_unit(plan, unit);
  return plan;
}

std::string text(const Plan& plan) {
  std::string out = format_text("strategy {} world {}", strategy_name(plan.strategy), plan.world);
  if (is_hybrid(plan.strategy)) out += format_text(" shard-size {}", plan.shard_size);
  if (plan.param_dtype != DType::kFloat32)
    out += format_text(" parameters {}", dtype_name(plan.param_dtype));
  if (plan.reduce_dtype != DType::kFloat32) {
    out += format_text(" reduction {}", dtype_name(plan.reduce_dtype));
  }
  if (plan.across_ranks) out += " across_ranks";
  out += "\n";
  size_t widest = 4;
  for (const Unit& unit : plan.units) widest = std::max(widest, escaped(unit.name).size());
  const auto padded = [widest](std::string name) {
    name.resize(widest, ' ');
    return name;
  };
  constexpr const char* kRow = "{:<5} {} {:>6} {:>13} {:>9} {:>13} {:>13} {:>5}";
  out += format_text(kRow, "unit", padded("name"), "params", "elements", "float32", "padded",
                     "a rank's", "nodes") +
         "\n";
  for (const Unit& unit : plan.units) {
    const int64_t bytes = unit.numel * static_cast<int64_t>(sizeof(float));
    out += format_text(
        kRow, "u" + std::to_string(unit.id), padded(escaped(unit.name)), unit.params.size(),
        readable_count(unit.numel), readable_bytes(static_cast<uint64_t>(bytes)),
        readable_count(unit.padded_numel), readable_count(plan.owned_numel(unit)), unit.nodes);
    if (unit.replicated) out += " replicated";
    if (!unit.frozen.empty()) {
      out += format_text(" frozen {} of {} elements", unit.frozen.size(),
                         readable_count(unit.frozen_padded_numel));
    }
    out += "\n";
  }
  return out;
}

}  // namespace ofsdp::fsdp
