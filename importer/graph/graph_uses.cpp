#include "importer/graph/graph_uses.h"

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

bool is_operator(const Node& node, std::string_view op) {
  const std::vector<Implementation>& made = node.op->cpu;
  return node.op->full_name() == op && (made.empty() || made[0].name != "plug-in");
}

}  // namespace ofsdp::importer
