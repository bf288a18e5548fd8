#include "importer/passes/fusion/fusion.h"

#include <algorithm>
#include <span>

#include "importer/passes/fusion/rewriter.h"

namespace ofsdp::importer {
namespace {

// In the order in which they are tried at a node. A rule may build on what an earlier node became.
constexpr FusionRule kRules[] = {
    {"rotary", fuse_rotary},
    {"attention", fuse_attention},
    {"linear", fuse_linear},
    {"bias", fuse_bias},
    {"gelu", fuse_gelu},
    {"layer_norm", fuse_layer_norm},
    {"rms_norm", fuse_rms_norm},
    {"log_softmax_loss", fuse_log_softmax_loss},
    {"max_pool_relu", fuse_max_pool_relu},
};

// These see the pieces that all other rules have left, and the nodes that the rules made.
constexpr FusionRule kLastRules[] = {{"causal_mask", fuse_causal_mask}, {"chain", fuse_chain}};

// Exporters leave Identity nodes between the pieces of a pattern; their readers read what they do.
void skip_identities(Graph& graph, const std::vector<ValueId>& wanted) {
  std::map<ValueId, ValueId> alias;
  std::vector<Node> kept;
  for (Node& node : graph.nodes) {
    for (ValueId& id : node.inputs) {
      if (const auto it = alias.find(id); it != alias.end()) id = it->second;
    }
    const bool skipped =
        node.op->full_name() == "Identity" && std::ranges::count(wanted, node.outputs[0]) == 0;
    if (skipped) alias[node.outputs[0]] = node.inputs[0];
    if (!skipped) kept.push_back(std::move(node));
  }
  graph.nodes = std::move(kept);
}

Graph apply(std::span<const FusionRule> rules, const Graph& graph,
            const std::vector<ValueId>& wanted, const FusionSettings& settings) {
  Rewriter rewriter(graph, wanted);
  rewriter.least_chain_bytes = settings.least_chain_bytes;
  for (const Node& node : graph.nodes) {
    bool replaced = false;
    for (const FusionRule& rule : rules) {
      if (settings.switched_off.contains(rule.name) || !rule.apply(rewriter, node)) continue;
      rewriter.count(rule.name);
      replaced = true;
      break;
    }
    if (!replaced) rewriter.keep(node);
  }
  return rewriter.finish(wanted);
}

}  // namespace

std::vector<std::string> fusion_names() {
  std::vector<std::string> names;
  for (const FusionRule& rule : kRules) names.emplace_back(rule.name);
  for (const FusionRule& rule : kLastRules) names.emplace_back(rule.name);
  return names;
}

Graph fuse(const Graph& graph, const std::vector<ValueId>& wanted, const FusionSettings& settings) {
  Graph live = graph;
  prune(live, wanted);
  skip_identities(live, wanted);
  return apply(kLastRules, apply(kRules, live, wanted, settings), wanted, settings);
}

}  // namespace ofsdp::importer
