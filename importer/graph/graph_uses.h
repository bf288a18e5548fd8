// GraphUses: which node makes a value and which nodes read it, by their places in the graph, for passes
// over a finished graph.
//
// Ownership: values; made anew when nodes have changed. Threads: any. Errors: none.
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

// Whether the node is that operator, and no plug-in has put another in its place.
bool is_operator(const Node& node, std::string_view op);

}  // namespace ofsdp::importer
