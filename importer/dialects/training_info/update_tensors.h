// UpdateTensors: which values of an update are tensors, and to which parameter each belongs.
//
// A value is a tensor when it depends on a gradient, a parameter or an initializer of more than one
// element, else a scalar; [Note: what an update may be] in update_rules.h says what may be done with
// them. Tensors that a node joins belong to one parameter.
//
// Ownership: refers to the split and the graph. Threads: one. Errors: kInput naming file and node.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "importer/dialects/training_info/training_info.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

class UpdateTensors {
 public:
  UpdateTensors(const SplitTraining& split, const Graph& graph, const std::string& file)
      : split_(split), graph_(graph), file_(file) {}

  Status run();

  bool is_tensor(ValueId id) const { return tensors_.contains(id); }
  // The parameter that a tensor belongs to; null: none.
  const std::string* owner(ValueId id) { return owner_of_set(root(id)); }
  // Nodes of the graph on scalars alone, in order.
  const std::vector<int>& scalar_nodes() const { return scalar_nodes_; }

 private:
  void find_tensors();
  void own_leaves();
  int root(ValueId id);
  const std::string* owner_of_set(int set) const;
  Status unite(ValueId a, ValueId b);
  Status join(int index);
  Status check_shapes(const Node& node, const std::vector<ValueId>& tensors) const;

  const SplitTraining& split_;
  const Graph& graph_;
  const std::string& file_;
  std::set<ValueId> tensors_;
  std::vector<int> joined_;            // union-find over values
  std::map<int, std::string> owners_;  // root -> parameter
  std::vector<int> scalar_nodes_;
};

}  // namespace ofsdp::importer
