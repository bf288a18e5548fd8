#include "importer/fusion/fusion.h"

#include "importer/fusion/rewriter.h"

namespace ofsdp {
namespace {

// In the order in which they are tried at a node. A rule may build on what an earlier node became.
constexpr FusionRule kRules[] = {
    {"attention", fuse_attention},
    {"linear", fuse_linear},
    {"bias", fuse_bias},
    {"gelu", fuse_gelu},
    {"layer_norm", fuse_layer_norm},
    {"rms_norm", fuse_rms_norm},
    {"log_softmax_loss", fuse_log_softmax_loss},
    {"max_pool_relu", fuse_max_pool_relu},
};

}  // namespace

std::vector<std::string> fusion_names() {
  std::vector<std::string> names;
  for (const FusionRule& rule : kRules) names.emplace_back(rule.name);
  return names;
}

Graph fuse(const Graph& graph, const std::vector<ValueId>& wanted,
           const std::set<std::string>& switched_off) {
  Graph live = graph;
  prune(live, wanted);
  Rewriter rewriter(live, wanted);
  for (const Node& node : live.nodes) {
    bool replaced = false;
    for (const FusionRule& rule : kRules) {
      if (switched_off.contains(rule.name) || !rule.apply(rewriter, node)) continue;
      rewriter.count(rule.name);
      replaced = true;
      break;
    }
    if (!replaced) rewriter.keep(node);
  }
  return rewriter.finish(wanted);
}

}  // namespace ofsdp
