#include "importer/passes/nhwc_weights.h"

#include <algorithm>

#include "kernels/core/lowered.h"

namespace ofsdp::importer {
namespace {

bool lacks_order(const Node& node) {
  const std::string op = node.op->full_name();
  return (op == "com.microsoft.NhwcConv" || op == "com.microsoft.NhwcFusedConv") &&
         !node.attributes.has(kNhwcWeightsLast);
}

}  // namespace

bool lacks_nhwc_order(const Graph& graph) { return std::ranges::any_of(graph.nodes, lacks_order); }

Graph with_nhwc_order(const Graph& graph, NhwcWeights order) {
  Graph made = graph;
  for (Node& node : made.nodes) {
    if (!lacks_order(node)) continue;
    Node ordered = node;
    ordered.attributes.set(kNhwcWeightsLast, int64_t{order == NhwcWeights::kLast});
    GraphEditor::change_symbolic(node, std::move(ordered));
  }
  return made;
}

Result<NhwcOrder> find_nhwc_order(const Graph& graph, const std::map<std::string, Shape>& shapes,
                                  Mode mode, const Lowering* lowering) {
  const auto fit = [&](NhwcWeights order) {
    return specialize(with_nhwc_order(graph, order), shapes, mode, lowering).status();
  };
  Status last = fit(NhwcWeights::kLast), first = fit(NhwcWeights::kFirst);
  if (!last.ok() && !first.ok()) return last;
  return NhwcOrder{last.ok() ? NhwcWeights::kLast : NhwcWeights::kFirst, last.ok() != first.ok()};
}

}  // namespace ofsdp::importer
