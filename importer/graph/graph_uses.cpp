#include "importer/graph/graph_uses.h"

#include <algorithm>

namespace ofsdp::importer {

GraphUses::GraphUses(const Graph& graph, const std::vector<bool>& dropped)
    : maker_(graph.values.size(), -1), readers_(graph.values.size()) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (i < dropped.size() && dropped[i]) continue;
    for (ValueId id : graph.nodes[i].outputs) add_maker(id, i);
    for (ValueId id : graph.nodes[i].inputs) {
      if (id != 0) add_reader(id, i);
    }
  }
  if (!maker_.empty()) maker_[0] = -1;
}

const Node* maker_of(const Graph& graph, ValueId id) {
  for (const Node& node : graph.nodes) {
    if (std::ranges::find(node.outputs, id) != node.outputs.end()) return &node;
  }
  return nullptr;
}

std::vector<ValueId> trained_values(const Graph& graph) {
  std::vector<ValueId> wanted{graph.loss};
  for (const Carried& c : graph.carried) wanted.push_back(c.next);
  for (const Parameter& p : graph.parameters) {
    if (p.gradient != 0) wanted.push_back(p.gradient);
  }
  return wanted;
}

Result<std::vector<TensorDesc>> infer_descs(Graph& graph, const Node& node) {
  OFSDP_ASSIGN_OR_RETURN(auto descs, infer_outputs(graph, node));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != 0) graph.value(node.outputs[i]).desc = descs[i];
  }
  return descs;
}

ValueId add_ints(Graph& graph, const std::string& name, const std::vector<int64_t>& values) {
  const Shape shape{static_cast<int64_t>(values.size())};
  return GraphEditor(graph).add_constant(name,
                                         make_constant<int64_t>(DType::kInt64, shape, values));
}

bool is_operator(const Node& node, std::string_view op) {
  const std::vector<Implementation>& made = node.op->cpu;
  return node.op->full_name() == op && (made.empty() || made[0].name != "plug-in");
}

}  // namespace ofsdp::importer
