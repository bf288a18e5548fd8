#include "importer/passes/loss_path.h"

#include <algorithm>
#include <map>

namespace ofsdp::importer {

LossPath find_loss_path(const Graph& graph) {
  LossPath path;
  path.needs.assign(graph.values.size(), false);
  for (const Parameter& p : graph.parameters) path.needs[static_cast<size_t>(p.value)] = p.trained;
  for (const Node& node : graph.nodes) {
    if (!std::ranges::any_of(node.inputs, [&](ValueId id) { return path.needs_grad(id); }))
      continue;
    for (ValueId id : node.outputs) {
      if (id != 0 && is_floating(graph.value(id).desc.dtype))
        path.needs[static_cast<size_t>(id)] = true;
    }
  }
  std::vector<bool> leads(graph.values.size(), false);
  leads[static_cast<size_t>(graph.loss)] = true;
  path.nodes.assign(graph.nodes.size(), false);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    path.nodes[i] = std::ranges::any_of(node.outputs, [&](ValueId id) {
      return id != 0 && leads[static_cast<size_t>(id)] && path.needs_grad(id);
    });
    if (!path.nodes[i]) continue;
    for (ValueId id : node.inputs) leads[static_cast<size_t>(id)] = path.needs_grad(id);
  }
  return path;
}

Status check_differentiable(const Graph& graph, const LossPath& path) {
  std::map<std::string, std::vector<std::string>> missing;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (path.nodes[i] && node.op->grad == nullptr)
      missing[node.op->full_name()].push_back(node.name);
  }
  if (missing.empty()) return {};
  std::string list;
  for (const auto& [op, nodes] : missing) {
    list += format_text("{}{} ({})", list.empty() ? "" : "; ", op, joined(nodes, ", "));
  }
  return input_error("{}: operators without a gradient on the way to the loss: {}", graph.file,
                     list);
}

}  // namespace ofsdp::importer
