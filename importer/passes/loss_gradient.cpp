#include <algorithm>
#include <set>

#include "importer/graph/graph_uses.h"
#include "importer/passes/passes.h"

namespace ofsdp::importer {
namespace {

class LossJoiner {
 public:
  LossJoiner(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source) {
    for (ValueId id : trained_values(graph_)) kept_.insert(id);
    kept_.insert(graph_.outputs.begin(), graph_.outputs.end());
  }

  Graph run() {
    std::vector<bool> joined(graph_.nodes.size());
    for (size_t i = 0; i < joined.size(); ++i) joined[i] = join(graph_.nodes[i]);
    std::vector<Node> nodes;
    for (size_t i = 0; i < joined.size(); ++i) {
      if (!joined[i]) nodes.push_back(std::move(graph_.nodes[i]));
    }
    graph_.nodes = std::move(nodes);
    return std::move(graph_);
  }

 private:
  // Returns whether the loss has taken this gradient in.
  bool join(const Node& gradient) {
    if (!is_operator(gradient, "ofsdp.SoftmaxCrossEntropyLossGrad")) return false;
    const ValueId log_prob = gradient.inputs[1];
    const int maker = uses_.maker(log_prob);
    const bool alone = uses_.readers(log_prob).size() == 1 && !kept_.contains(log_prob);
    if (gradient.inputs[0] != graph_.loss_weight || maker < 0 || !alone) return false;
    Node& loss = graph_.nodes[static_cast<size_t>(maker)];
    const bool of_it = is_operator(loss, "SoftmaxCrossEntropyLoss") &&
                       loss.outputs[1] == log_prob &&
                       std::ranges::equal(loss.inputs.begin() + 1, loss.inputs.end(),
                                          gradient.inputs.begin() + 2, gradient.inputs.end()) &&
                       loss.attributes.all() == gradient.attributes.all();
    if (!of_it) return false;
    Node made = loss;
    made.op = &graph_.registry->get("ofsdp.SoftmaxCrossEntropyLossWithGradient");
    made.inputs.insert(made.inputs.begin(), graph_.loss_weight);
    made.outputs[1] = gradient.outputs[0];
    if (made.outputs[0] == 0 || !takes_(graph_, made)) return false;
    loss = std::move(made);
    return true;
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::set<ValueId> kept_;
};

}  // namespace

Graph join_loss_gradient(const Graph& graph, const TakesNode& takes) {
  return LossJoiner(graph, takes).run();
}

}  // namespace ofsdp::importer
