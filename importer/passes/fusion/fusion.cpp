#include "importer/passes/fusion/fusion.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace ofsdp::importer {
namespace {

// The rules in the order in which they are tried at a node. A rule may use an earlier node's
// result.
constexpr FusionRule kRules[] = {
    {"rotary", "", "RotaryEmbedding", fuse_rotary},
    {"attention", "MatMul", "Attention", fuse_attention},
    {"linear", "", "Gemm", fuse_linear},
    {"bias", "Add", "Gemm", fuse_bias},
    {"bias_gelu", "", "Gelu", fuse_bias_gelu},
    {"gelu", "Mul", "Gelu", fuse_gelu},
    {"layer_norm", "Add", "LayerNormalization", fuse_layer_norm},
    {"rms_norm", "Mul", "RMSNormalization", fuse_rms_norm},
    {"log_softmax_loss", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
     fuse_log_softmax_loss},
    {"max_pool_relu", "MaxPool", "MaxPool", fuse_max_pool_relu},
};

// These see nodes that rules made, and masks before a chain takes them.
constexpr FusionRule kMaskRules[] = {{"causal_mask", "Attention", "Attention", fuse_causal_mask},
                                     {"mask_band", "Attention", "Attention", fuse_mask_band}};

// These see the pieces that no other rule took.
constexpr FusionRule kLastRules[] = {{"chain", "", "ofsdp.Chain", fuse_chain}};

// These change only where operands lie.
constexpr FusionRule kPlacingRules[] = {
    {"attention_operands", "Attention", "Attention", fuse_attention_operands},
    {"attention_result", "Transpose", "Attention", fuse_attention_result}};

// Exporters leave Identity nodes between a pattern's pieces; readers then read their inputs.
void skip_identities(Graph& graph, const std::vector<ValueId>& wanted) {
  std::map<ValueId, ValueId> alias;
  std::vector<Node> kept;
  for (Node& node : graph.nodes) {
    Node reading = node;
    for (ValueId& id : reading.inputs) {
      if (const auto it = alias.find(id); it != alias.end()) id = it->second;
    }
    if (reading.inputs != node.inputs) {
      const Status changed = GraphEditor(graph).change(node, std::move(reading));
      OFSDP_CHECK(changed.ok(), "{}", changed.message());
    }
    const bool skipped =
        node.op->full_name() == "Identity" && std::ranges::count(wanted, node.outputs[0]) == 0;
    if (skipped) alias[node.outputs[0]] = node.inputs[0];
    if (!skipped) kept.push_back(std::move(node));
  }
  graph.nodes = std::move(kept);
}

bool has_operator(const Graph& graph, const std::string& name) {
  const size_t dot = name.rfind('.');
  const std::string domain = dot == std::string::npos ? "" : name.substr(0, dot);
  return graph.registry->find(domain, name.substr(dot + 1)) != nullptr;
}

Graph apply(std::span<const FusionRule> rules, const Graph& graph,
            const std::vector<ValueId>& wanted, const FusionSettings& settings) {
  Rewriter rewriter(graph, wanted);
  rewriter.least_chain_bytes = settings.least_chain_bytes;
  const auto usable = [&](const FusionRule& rule) {
    return !settings.switched_off.contains(rule.name) && has_operator(graph, rule.into);
  };
  std::vector<FusionRule> used;
  std::ranges::copy_if(rules, std::back_inserter(used), usable);
  for (const Node& node : graph.nodes) {
    const std::string op = node.op->full_name();
    const auto applied = std::ranges::find_if(used, [&](const FusionRule& rule) {
      return (rule.last[0] == 0 || op == rule.last) && rule.apply(rewriter, node);
    });
    if (applied == used.end()) {
      rewriter.keep(node);
    } else {
      rewriter.count(applied->name);
    }
  }
  return rewriter.finish(wanted);
}

}  // namespace

std::vector<std::string> fusion_names() {
  std::vector<std::string> names;
  for (const FusionRule& rule : kRules) names.emplace_back(rule.name);
  for (const FusionRule& rule : kMaskRules) names.emplace_back(rule.name);
  for (const FusionRule& rule : kLastRules) names.emplace_back(rule.name);
  for (const FusionRule& rule : kPlacingRules) names.emplace_back(rule.name);
  return names;
}

Graph fuse(const Graph& graph, const std::vector<ValueId>& wanted, const FusionSettings& settings) {
  Graph live = graph;
  prune(live, wanted);
  skip_identities(live, wanted);
  const Graph made = apply(kRules, live, wanted, settings);
  const Graph whole =
      apply(kLastRules, apply(kMaskRules, made, wanted, settings), wanted, settings);
  return apply(kPlacingRules, whole, wanted, settings);
}

}  // namespace ofsdp::importer
