// GraphUses: which node makes a value and which nodes read it, by their places in the graph. Below
// are small helpers of passes.
//
// A GraphUses is a snapshot: make it again when nodes have changed. Threads: any.
#pragma once

#include <string_view>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

class GraphUses {
 public:
  GraphUses() = default;
  // Nodes that are `dropped` (empty: none) neither make nor read.
  explicit GraphUses(const Graph& graph, const std::vector<bool>& dropped = {});

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

// Returns whether the node is that operator and no plug-in has replaced it.
bool is_operator(const Node& node, std::string_view op);
// Returns the node that makes the value, or null.
const Node* maker_of(const Graph& graph, ValueId id);
// Returns the loss, the next values of buffers and the gradients of parameters.
std::vector<ValueId> trained_values(const Graph& graph);
// Infers the descs of a node's outputs and sets them. Returns all of them.
Result<std::vector<TensorDesc>> infer_descs(Graph& graph, const Node& node);
// Adds an int64 constant of one axis.
ValueId add_ints(Graph& graph, const std::string& name, const std::vector<int64_t>& values);

}  // namespace ofsdp::importer
