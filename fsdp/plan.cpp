#include "fsdp/plan.h"

#include <algorithm>
#include <set>

namespace ofsdp {
namespace {

int64_t align(int64_t numel, int64_t to) { return (numel + to - 1) / to * to; }

void add_param(Unit& unit, const Graph& graph, int index) {
  const Parameter& parameter = graph.parameters[static_cast<size_t>(index)];
  const int64_t numel = graph.value(parameter.value).desc.numel();
  unit.params.push_back({index, parameter.name, unit.padded_numel, numel});
  unit.numel += numel;
  unit.padded_numel = align(unit.padded_numel + numel, kParamAlignment);
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

std::string_view strategy_name(Strategy strategy) {
  switch (strategy) {
    case Strategy::kFullShard:
      return "full_shard";
    case Strategy::kShardGradOp:
      return "shard_grad_op";
    case Strategy::kNoShard:
      return "no_shard";
    default:
      return "not built";
  }
}

Result<Plan> make_plan(const Graph& graph, const PlanOptions& options) {
  OFSDP_ASSIGN_OR_RETURN(Partition parts, partition(graph, {options.wrap, options.min_params,
                                                            options.wrap_layers, options.ignore}));
  Plan plan{options.strategy, options.world, {}, -1, std::move(parts.notice)};
  const auto nodes = readers(graph, false);
  for (const ParameterGroup& group : parts.groups) {
    Unit unit;
    unit.id = static_cast<int>(plan.units.size());
    unit.name = group.name;
    std::set<int> reading;
    for (const int index : group.parameters) {
      add_param(unit, graph, index);
      const auto& some = nodes[static_cast<size_t>(index)];
      reading.insert(some.begin(), some.end());
    }
    unit.nodes = static_cast<int>(reading.size());
    unit.padded_numel = align(unit.padded_numel, kParamAlignment * options.world);
    unit.replicated = group.kind == ParameterGroup::Kind::kReplicated;
    if (group.kind == ParameterGroup::Kind::kRoot) plan.root = unit.id;
    plan.units.push_back(std::move(unit));
  }
  return plan;
}

std::string text(const Plan& plan) {
  std::string out = fmt::format("strategy {} world {}\n", strategy_name(plan.strategy), plan.world);
  for (const Unit& unit : plan.units) {
    out +=
        fmt::format("u{} {} params {} numel {} bytes {} padded {} shard {} nodes {}{}\n", unit.id,
                    unit.name, unit.params.size(), unit.numel,
                    unit.numel * static_cast<int64_t>(sizeof(float)), unit.padded_numel,
                    unit.shard_numel(plan.world), unit.nodes, unit.replicated ? " replicated" : "");
  }
  return out;
}

}  // namespace ofsdp
