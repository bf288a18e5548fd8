#include "tests/graphs/shrink.h"

#include <onnx/defs/parser.h>
#include <onnx/defs/printer.h>

#include <algorithm>
#include <sstream>

namespace ofsdp::graphs {
namespace {

void replace_uses(DrawnGraph& graph, const std::string& from, const std::string& to) {
  for (DrawnNode& node : graph.nodes) {
    std::ranges::replace(node.inputs, from, to);
  }
  if (graph.loss == from) graph.loss = to;
}

// Computes all values again; readers of a replaced value get new numbers.
void recompute(DrawnGraph& graph) {
  for (const DrawnNode& node : graph.nodes) {
    const auto made = evaluated(graph, node);
    bool trained = false, known = true;
    for (const std::string& name : node.inputs) {
      trained = trained || (!name.empty() && graph.values.at(name).trained);
      known = known && (name.empty() || graph.values.at(name).known);
    }
    known = known || node.op->shape_only;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      graph.values[node.outputs[i]] = {Kind::kNode, made.at(i), trained, known};
    }
  }
}

bool still_fails(DrawnGraph& graph, const Fails& fails) {
  try {
    drop_unused(graph);
    recompute(graph);
    if (graph.nodes.empty() || graph.values.at(graph.loss).kind != Kind::kNode) return false;
    return fails(graph);
  } catch (const Refused&) {
    return false;
  }
}

// A fresh weight in place of the node's outputs.
DrawnGraph with_weights(DrawnGraph graph, size_t n) {
  const DrawnNode node = graph.nodes[n];
  graph.nodes.erase(graph.nodes.begin() + static_cast<std::ptrdiff_t>(n));
  for (const std::string& name : node.outputs) {
    DrawnValue value = graph.values.at(name);
    value.kind = value.tensor.desc.dtype == DType::kFloat32 ? Kind::kWeight : Kind::kConstant;
    value.trained = value.kind == Kind::kWeight;
    value.known = value.kind == Kind::kConstant;
    for (double& v : value.tensor.values) v = static_cast<double>(static_cast<float>(v));
    const std::string fresh = "z" + name;
    graph.values[fresh] = std::move(value);
    replace_uses(graph, name, fresh);
  }
  return graph;
}

std::optional<DrawnGraph> with_operand(DrawnGraph graph, size_t n, size_t operand) {
  const DrawnNode node = graph.nodes[n];
  if (operand >= node.inputs.size() || node.inputs[operand].empty()) return std::nullopt;
  if (graph.tensor(node.inputs[operand]).desc != graph.tensor(node.outputs[0]).desc)
    return std::nullopt;
  graph.nodes.erase(graph.nodes.begin() + static_cast<std::ptrdiff_t>(n));
  replace_uses(graph, node.outputs[0], node.inputs[operand]);
  return graph;
}

bool takes(DrawnGraph& graph, DrawnGraph candidate, const Fails& fails) {
  if (!still_fails(candidate, fails)) return false;
  graph = std::move(candidate);
  return true;
}

}  // namespace

DrawnGraph shrunk(const DrawnGraph& graph, const Fails& fails) {
  DrawnGraph smallest = graph;
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t i = smallest.nodes.size(); i-- > 0;) {
      if (i >= smallest.nodes.size()) continue;
      for (size_t operand = 0; operand < 3 && i < smallest.nodes.size(); ++operand) {
        auto candidate = with_operand(smallest, i, operand);
        if (!candidate || !takes(smallest, *std::move(candidate), fails)) continue;
        smaller = true;
        break;
      }
      if (i >= smallest.nodes.size() || smallest.nodes[i].outputs[0] == smallest.loss) continue;
      smaller = takes(smallest, with_weights(smallest, i), fails) || smaller;
    }
  }
  return smallest;
}

std::string text_of(const DrawnGraph& graph, uint64_t seed, const std::string& way) {
  return format_text("# seed {} batch {} way {}\n", seed, graph.batch, way) +
         onnx::ProtoToString(model_of(graph)) + "\n";
}

FoundGraph parsed(const std::string& text) {
  std::stringstream stream(text.substr(0, text.find('\n')));
  std::string hash, word;
  FoundGraph found;
  stream >> hash >> word >> found.model.seed >> word >> found.model.batch >> word >> found.way;
  onnx::ModelProto model;
  onnx::OnnxParser parser(text.c_str() + text.find('\n') + 1);
  const auto status = parser.Parse(model);
  if (!status.IsOK()) throw std::runtime_error(status.ErrorMessage());
  found.model.bytes = model.SerializeAsString();
  return found;
}

}  // namespace ofsdp::graphs
