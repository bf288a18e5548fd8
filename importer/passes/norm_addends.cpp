#include <set>

#include "importer/graph/graph_uses.h"
#include "importer/passes/passes.h"
#include "kernels/core/norm_operands.h"

namespace ofsdp::importer {
namespace {

class NormAddends {
 public:
  NormAddends(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source), taken_(source.nodes.size()) {
    for (ValueId id : trained_values(graph_)) kept_.insert(id);
    kept_.insert(graph_.outputs.begin(), graph_.outputs.end());
  }

  Graph run() {
    for (size_t i = 0; i < taken_.size(); ++i) join(i);
    std::vector<Node> nodes;
    for (size_t i = 0; i < taken_.size(); ++i) {
      if (!taken_[i]) nodes.push_back(std::move(graph_.nodes[i]));
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

 private:
  // A sum that alone reads the result of node i, if it only adds what is there before that node.
  void join(size_t i) {
    const Node& norm = graph_.nodes[i];
    if (!is_operator(norm, "ofsdp.LayerNormalizationGrad") || norm.inputs.size() > kNormAddend)
      return;
    const ValueId dx = norm.outputs[0];
    if (dx == 0 || kept_.contains(dx) || uses_.readers(dx).size() != 1) return;
    const size_t reader = uses_.readers(dx)[0];
    const Node& sum = graph_.nodes[reader];
    if (!is_operator(sum, "Add")) return;
    const ValueId other = sum.inputs[sum.inputs[0] == dx ? 1 : 0], result = sum.outputs[0];
    const TensorDesc& desc = graph_.value(dx).desc;
    if (graph_.value(other).desc != desc || graph_.value(result).desc != desc) return;
    if (uses_.maker(other) >= static_cast<int>(i)) return;  // i itself makes the scale's gradient
    Node made = norm;
    made.inputs.resize(kNormAddend, 0);
    made.inputs.push_back(other);
    made.outputs[0] = result;
    if (!takes_(graph_, made)) return;
    if (!GraphEditor(graph_).change(graph_.nodes[i], std::move(made)).ok()) return;
    taken_[reader] = true;
    ++graph_.fused["addend"];
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::vector<bool> taken_;  // per node: by a normalization
  std::set<ValueId> kept_;
};

}  // namespace

Graph join_norm_addends(const Graph& graph, const TakesNode& takes) {
  return NormAddends(graph, takes).run();
}

}  // namespace ofsdp::importer
