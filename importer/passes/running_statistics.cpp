#include "importer/graph/graph_uses.h"
#include "importer/passes/passes.h"

namespace ofsdp::importer {
namespace {

// Returns the parameter at input i of the node when its value may change, or -1.
int changing_parameter(const Graph& graph, const Node& node, size_t i) {
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    const Parameter& parameter = graph.parameters[p];
    if (parameter.value != node.inputs[i]) continue;
    const bool fixed =
        graph.value(parameter.value).kind == ValueKind::kConstant || parameter.reason == "--freeze";
    return fixed ? -1 : static_cast<int>(p);
  }
  return -1;
}

}  // namespace

Status carry_statistics(Graph& graph) {
  GraphEditor editor(graph);
  for (Node& node : graph.nodes) {
    if (node.op->full_name() != "BatchNormalization") continue;
    if (node.attributes.i("training_mode", 0) == 0 || node.inputs.size() < 5) continue;
    Node made = node;
    if (made.outputs.size() < 3) made.outputs.resize(3, 0);
    for (size_t i : {size_t{1}, size_t{2}}) {
      const int parameter = changing_parameter(graph, node, i + 2);
      if (parameter < 0) continue;
      if (made.outputs[i] == 0) {
        const std::string name = format_text("{}.{}", node.name, i == 1 ? "mean" : "variance");
        made.outputs[i] = editor.add_value({name, ValueKind::kActivation, {}});
      }
      graph.carried.push_back({parameter, made.outputs[i]});
    }
    OFSDP_RETURN_IF_ERROR(editor.change_descs(node, std::move(made)));
  }
  return {};
}

}  // namespace ofsdp::importer
