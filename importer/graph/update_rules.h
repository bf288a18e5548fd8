// UpdateRules: an update of the trained parameters that the model brings itself, as nodes of a
// graph. Each parameter has a few elementwise nodes over the parameter, its gradient, tensors of
// the same shape (optimizer states) and scalars (rate, count of updates). Other nodes compute the
// next values of the scalars.
//
// [Note: what an update may be] A value is a tensor of the update if it depends on a gradient, on a
// parameter or on an initializer of more than one element; otherwise it is a scalar. A node on
// tensors must be elementwise over one shape and may also read scalars. Tensors that one node
// combines must belong to one parameter. A node on scalars may be anything. Everything else (norms,
// a mean over the parameters, a product with a matrix) needs more than a shard and is refused.
//
// The registry must outlive the rules.
#pragma once

#include <algorithm>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct UpdateState {  // an initializer with the shape of a parameter, or a scalar
  std::string initializer;
  int training_info = -1;  // index of the algorithm that has it; -1: the model's graph has it
  ValueId value = 0;
  ValueId next = 0;               // 0: it never changes
  ConstantPtr initial = nullptr;  // scalars only: the value in the file
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
  std::string loss;                  // the output to differentiate
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
