#include "runtime/program/schedule.h"

#include <algorithm>
#include <array>

#include "importer/graph/graph_uses.h"
#include "importer/graph/rank_rows.h"
#include "kernels/base/escaped.h"
#include "kernels/base/hash.h"
#include "runtime/program/schedule_places.h"

namespace ofsdp::runtime {
namespace {

using enum StepSubject;

// In the order of StepKind.
constexpr std::array<StepTraits, 21> kTraits{{
    {"Gather", kUnit, true, true, true, true},
    {"Free", kUnit, false, false, false, false},
    {"Run", kNode, false, false, true, true},
    {"CheckLoss", kRun, false, false, false, true},
    {"Carry", kBuffer, false, false, true, true},
    {"Acquire", kUnit, true, true, true, true},
    {"Accumulate", kUnit, true, false, true, true},
    {"Post", kUnit, true, false, false, false},
    {"Reduce", kUnit, true, true, true, true},
    {"PostShard", kUnit, true, false, false, false},
    {"AllReduce", kUnit, true, true, true, true},
    {"ReduceUpdate", kUnit, true, true, true, true},
    {"Clip", kRun, true, true, true, true},
    {"Update", kUnit, true, false, true, true},
    {"Factor", kUnit, true, true, true, true},
    {"Orthogonalize", kUnit, true, true, true, true},
    {"Trust", kRun, true, true, true, true},
    {"Apply", kUnit, true, false, true, true},
    {"PostRows", kNode, true, true, true, true},
    {"JoinRows", kNode, true, true, true, false},
    {"Watch", kRun, true, true, true, false},
}};
static_assert(kTraits.size() == static_cast<size_t>(StepKind::kWatch) + 1);

// The node after which every term of the loss is known.
int maker_of_last_term(const Graph& graph) {
  const GraphUses uses(graph);
  int last = -1;
  for (const LossTerm& term : graph.terms()) last = std::max(last, uses.maker(term.value));
  return last;
}

}  // namespace

const StepTraits& traits(StepKind kind) { return kTraits[static_cast<size_t>(kind)]; }

const char* step_name(StepKind kind) { return traits(kind).name; }

Schedule compile(const Graph& graph, const Plan& plan, const CompileOptions& options) {
  StepPlaces places(graph.nodes.size());
  place_gathers(graph, plan, options, places);
  if (options.training) place_reductions(graph, plan, options, places);
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
  // With across_ranks only slice 0 updates running statistics, so that they do not depend on the
  // world size.
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
    if (step.index < 0 || traits(step.kind).subject != kUnit) continue;
    const Unit& unit = plan.units[static_cast<size_t>(step.index)];
    hash.add(static_cast<uint64_t>(unit.padded_numel));
    hash.add(static_cast<uint64_t>(unit.frozen_padded_numel));
  }
  return hash.value();
}

std::string text(const Schedule& schedule, const Graph& graph) {
  std::string out;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const StepSubject subject = traits(step.kind).subject;
    out += format_text("{:4} {}", i, step_name(step.kind));
    if (subject == kNode) {
      const Node& node = graph.nodes[static_cast<size_t>(step.index)];
      out += format_text(" n{} {} '{}'", step.index, escaped(node.op->full_name()),
                         escaped(node.name));
    } else if (subject == kBuffer) {
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
