// EpilogueGraph: a graph whose products take over what stands beside them (epilogues.cpp has the rules):
// nodes keep their places while rules look around, those that were taken over are dropped at the end.
//
// Ownership: its own copy of the graph. Threads: one. Errors: none; what `takes` refuses stays apart.
#pragma once

#include <set>

#include "importer/graph/graph_uses.h"
#include "importer/passes/epilogues.h"

namespace ofsdp::importer {

class EpilogueGraph {
 public:
  EpilogueGraph(const Graph& source, const TakesNode& takes);

  const Graph& graph() const { return graph_; }
  size_t size() const { return graph_.nodes.size(); }
  const Node& node(size_t i) const { return graph_.nodes[i]; }
  bool dropped(size_t i) const { return dropped_[i]; }
  const TensorDesc& desc(ValueId id) const { return graph_.value(id).desc; }
  int maker(ValueId id) const { return uses_.maker(id); }
  const std::vector<size_t>& readers(ValueId id) const { return uses_.readers(id); }
  // What the value is a view of.
  ValueId root(ValueId id) const;
  // The value that the only reader of `id` that is no view reads it as; 0 where there are others.
  ValueId only_view(ValueId id) const;

  // `made` in place of the product `i`, whose result becomes what node `taken` made.
  bool replace(size_t i, Node made, size_t taken);
  // The same, where `value`, seen as a matrix, becomes an operand of it.
  bool replace_with(size_t i, Node made, size_t operand, ValueId value, size_t taken);
  // `made` in place of the product `i`; it gives the result of node `taken` beside its own.
  bool take_over(size_t i, Node made, size_t taken);

  Graph finish();  // once, the last call

 private:
  void index();
  void accept(size_t i, Node made);
  ValueId new_value(size_t i, const TensorDesc& as);
  Node reshaped(const Node& like, ValueId from, ValueId to);
  ValueId as_matrix(size_t i, ValueId id);

  Graph graph_;
  const TakesNode& takes_;
  std::vector<bool> dropped_;              // per node
  std::vector<std::vector<Node>> before_;  // per node: views that it reads
  GraphUses uses_;
  std::set<ValueId> wanted_;
};

}  // namespace ofsdp::importer
