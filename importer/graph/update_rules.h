// UpdateRules: an update of the trained parameters that a model brings itself, as nodes of a graph.
// For each parameter it has a few elementwise nodes over the parameter, its gradient, tensors of
// its shape (optimizer states) and scalars (rate, count of updates). A few more nodes compute the
// next values of the scalars.
//
// [Note: what an update may be] A value is a tensor of the update when it depends on a gradient, a
// parameter or an initializer of more than one element; else it is a scalar. A node on tensors must
// be elementwise over one shape and may also read scalars. Tensors that one node joins belong to
// one parameter. A node on scalars may be anything. Everything else (norms, a mean over the
// parameters, a product with a matrix) needs more than a shard holds and is refused.
//
// Owns its graph; the registry must outlive it. Threads: any, once made.
#pragma once

#include <algorithm>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct UpdateState {  // an initializer of a parameter's shape, or a scalar
  std::string initializer;
  int training_info = -1;  // whose algorithm has it; -1: the model's graph
  ValueId value = 0;
  ValueId next = 0;               // 0: it stays as it is
  ConstantPtr initial = nullptr;  // of a scalar: the value in the file
};

struct UpdateRule {
  std::string parameter;
  ValueId value = 0;
  ValueId gradient = 0;  // 0: the update does not read it
  ValueId next = 0;
  std::vector<UpdateState> states{};
  std::vector<int> nodes{};  // of the graph, in order
};

struct UpdateRules {
  std::string loss;                  // the output that is differentiated
  std::vector<std::string> trained;  // the order of `parameters`
  Graph graph;
  std::vector<UpdateRule> parameters;
  std::vector<UpdateState> scalars;
  std::vector<int> scalar_nodes;
  ValueId rate = 0;  // the learning rate, a scalar; 0: unknown

  size_t most_states() const {
    size_t most = 0;
    for (const UpdateRule& rule : parameters) most = std::max(most, rule.states.size());
    return most;
  }
};

}  // namespace ofsdp::importer
