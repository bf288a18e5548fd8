// run_forward: runs a graph's forward pass node by node, with separate memory for each value. For
// checks and --initialize, not for training.
#pragma once

#include <map>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::runtime {

using Feeds = std::map<ValueId, std::vector<std::byte>>;

// Returns the float32 outputs by name. `feeds` holds the bytes of inputs and parameters; `context`
// is for random operators. Returns kInput if a value is neither computed nor fed, and errors of
// kernels with the node.
Result<std::map<std::string, std::vector<float>>> run_forward(const Graph& graph, Feeds feeds,
                                                              const StepContext& context = {});

}  // namespace ofsdp::runtime
