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
  // A gradient and its loss, and which input of the gradient is output 1 of the loss. Inputs 2 and
  // 3 are labels and class weights, inputs 1 and 2 of the loss.
  struct Pair {
    const char *gradient, *loss;
    size_t kept;
  };
  static constexpr Pair kPairs[] = {
      {"ofsdp.SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLoss", 1},
      {"ofsdp.NarrowCrossEntropyLossGrad", "ofsdp.NarrowCrossEntropyLoss", 4},
  };

  static ValueId input(const Node& node, size_t i) {
    return i < node.inputs.size() ? node.inputs[i] : 0;
  }

  // Returns whether the loss has taken this gradient in.
  bool join(const Node& gradient) {
    return std::ranges::any_of(kPairs, [&](const Pair& pair) {
      return is_operator(gradient, pair.gradient) && join(gradient, pair);
    });
  }

  bool join(const Node& gradient, const Pair& pair) {
    const ValueId kept = input(gradient, pair.kept);
    const int maker = uses_.maker(kept);
    const bool alone = uses_.readers(kept).size() == 1 && !kept_.contains(kept);
    const ValueId weight = gradient.inputs[0];
    const bool starts = graph_.value(weight).kind == ValueKind::kLossWeight;
    if (!starts || maker < 0 || !alone) return false;
    if (input(gradient, 5) != 0) return false;  // flows back through what is kept
    Node& loss = graph_.nodes[static_cast<size_t>(maker)];
    const bool of_it = is_operator(loss, pair.loss) && loss.outputs[1] == kept &&
                       input(loss, 1) == input(gradient, 2) &&
                       input(loss, 2) == input(gradient, 3) &&
                       loss.attributes.all() == gradient.attributes.all();
    if (!of_it) return false;
    Node made = loss;
    made.op = &graph_.registry->get("ofsdp.SoftmaxCrossEntropyLossWithGradient");
    made.inputs.insert(made.inputs.begin(), weight);
    made.outputs[1] = gradient.outputs[0];
    if (made.outputs[0] == 0 || !takes_(graph_, made)) return false;
    return GraphEditor(graph_).change(loss, std::move(made)).ok();  // scores [N, C, d...] stay
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
