// UpdateRules: how a model's own training_info updates its trained parameters, checked to be
// something that runs on shards: for each parameter a few elementwise nodes over the parameter, its
// gradient, tensors of its shape (optimizer state) and scalars (rate, count of updates), and a few
// nodes that give the scalars their next values.
//
// [Note: what an update may be] A value is a tensor of the update when it depends on a gradient, a
// parameter or an initializer of more than one element, else a scalar. Nodes on tensors must be
// elementwise over one shape, with scalars beside; tensors that one node joins belong to one
// parameter. Nodes on scalars may be anything. All else (norms, a mean over the parameters, a product
// with a matrix) needs more than a shard has, and is refused.
//
// Ownership: values; the registry outlives them. Threads: any, once made. Errors: kInput naming file,
// node and the tensors concerned.
#pragma once

#include <optional>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct UpdateState {  // an initializer of a parameter's shape
  std::string initializer;
  int training_info = -1;  // whose algorithm has it; -1: the model's graph
  ValueId value = 0;
  ValueId next = 0;               // 0: it stays as it is
  ConstantPtr initial = nullptr;  // of a scalar: what the file has
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
  std::string loss;                  // the output that Gradient is of
  std::vector<std::string> trained;  // the order of `rules`
  Graph graph;
  std::vector<UpdateRule> rules;
  std::vector<UpdateState> scalars;
  std::vector<int> scalar_nodes;
  ValueId rate = 0;  // the learning rate, where one can be told; a scalar

  size_t most_states() const;
};

// None when the model has no training_info.
Result<std::optional<UpdateRules>> read_update_rules(const OnnxFile& file,
                                                     const Registry& registry);

}  // namespace ofsdp::importer
