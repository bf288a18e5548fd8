#include "importer/fusion.h"

#include <algorithm>

namespace ofsdp {
namespace {

// How often each value is read, graph outputs and the loss included.
std::vector<int> reads(const Graph& graph) {
  std::vector<int> count(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    for (ValueId id : node.inputs) ++count[static_cast<size_t>(id)];
  }
  for (ValueId id : graph.outputs) ++count[static_cast<size_t>(id)];
  ++count[static_cast<size_t>(graph.loss)];
  return count;
}

const Node* relu_that_makes(const Graph& graph, ValueId id) {
  for (const Node& node : graph.nodes) {
    if (node.outputs[0] == id) return node.op->full_name() == "Relu" ? &node : nullptr;
  }
  return nullptr;
}

// MaxPool takes the clamping over only when it returns no indices.
bool takes_relu(const Node& node) {
  return node.op->full_name() == "MaxPool" && node.outputs.size() == 1 &&
         !node.attributes.has("ofsdp_activation");
}

}  // namespace

Graph fuse(const Graph& graph) {
  Graph result = graph;
  const std::vector<int> count = reads(graph);
  std::vector<ValueId> dropped;
  for (Node& node : result.nodes) {
    if (!takes_relu(node) || count[static_cast<size_t>(node.inputs[0])] != 1) continue;
    const Node* relu = relu_that_makes(graph, node.inputs[0]);
    if (relu == nullptr || graph.value(relu->inputs[0]).desc.dtype != DType::kFloat32) continue;
    dropped.push_back(relu->outputs[0]);
    node.inputs[0] = relu->inputs[0];
    node.attributes.set("ofsdp_activation", std::string("relu"));
  }
  std::erase_if(result.nodes, [&](const Node& node) {
    return std::ranges::find(dropped, node.outputs[0]) != dropped.end();
  });
  return result;
}

}  // namespace ofsdp
