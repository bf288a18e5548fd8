// GraphUses: which node makes a value and which nodes read it, by their places in the graph. Below
// are small helpers of passes.
//
// A GraphUses is a snapshot: make it again when nodes have changed. Threads: any.
#pragma once

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

class GraphUses {
 public:
  GraphUses() = default;
  // Nodes that are `dropped` (empty: none) neither make nor read.
  explicit GraphUses(const Graph& graph, const std::vector<bool>& dropped = {})
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

  int maker(ValueId id) const { return maker_[static_cast<size_t>(id)]; }  // -1: no node
  const std::vector<size_t>& readers(ValueId id) const { return readers_[static_cast<size_t>(id)]; }

  void add_maker(ValueId id, size_t node) {
    maker_[static_cast<size_t>(id)] = static_cast<int>(node);
  }
  void add_reader(ValueId id, size_t node) { readers_[static_cast<size_t>(id)].push_back(node); }

 private:
  std::vector<int> maker_;
  std::vector<std::vector<size_t>> readers_;
};

// Returns the value and every view of it, views of views too. `Uses` has readers(value) and
// node(place).
template <typename Uses>
std::vector<ValueId> with_views(const Uses& uses, ValueId id) {
  std::vector<ValueId> found{id};
  std::set<ValueId> seen{id};
  for (size_t at = 0; at < found.size(); ++at) {
    for (size_t reader : uses.readers(found[at])) {
      const Node& node = uses.node(reader);
      if (node.op->view && seen.insert(node.outputs[0]).second) found.push_back(node.outputs[0]);
    }
  }
  return found;
}

// Returns whether the node is that operator and no plug-in has replaced it.
inline bool is_operator(const Node& node, std::string_view op) {
  const std::vector<Implementation>& made = node.op->cpu;
  return node.op->full_name() == op && (made.empty() || made[0].name != "plug-in");
}

// Returns the node that makes the value, or null.
inline const Node* maker_of(const Graph& graph, ValueId id) {
  for (const Node& node : graph.nodes) {
    if (std::ranges::find(node.outputs, id) != node.outputs.end()) return &node;
  }
  return nullptr;
}

// Returns the terms of the loss, the next values of buffers and the gradients of parameters.
inline std::vector<ValueId> trained_values(const Graph& graph) {
  std::vector<ValueId> wanted;
  for (const LossTerm& term : graph.terms()) wanted.push_back(term.value);
  for (const Carried& c : graph.carried) wanted.push_back(c.next);
  for (const Parameter& p : graph.parameters) {
    if (p.gradient != 0) wanted.push_back(p.gradient);
  }
  return wanted;
}

// Infers the descs of a node's outputs and sets them. Returns all of them.
inline Result<std::vector<TensorDesc>> infer_descs(Graph& graph, const Node& node) {
  OFSDP_ASSIGN_OR_RETURN(auto descs, infer_outputs(graph, node));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != 0) graph.value(node.outputs[i]).desc = descs[i];
  }
  return descs;
}

// Adds an int64 constant of one axis.
inline ValueId add_ints(Graph& graph, const std::string& name, const std::vector<int64_t>& values) {
  const Shape shape{static_cast<int64_t>(values.size())};
  return GraphEditor(graph).add_constant(name,
                                         make_constant<int64_t>(DType::kInt64, shape, values));
}

}  // namespace ofsdp::importer
