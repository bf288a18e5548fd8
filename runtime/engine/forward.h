// run_forward: runs a graph's forward pass node by node on the CPU, and allocates memory for each
// value. For `check` and --initialize; training uses planned programs (executor.h).
#pragma once

#include <map>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::runtime {

using Feeds = std::map<ValueId, std::vector<std::byte>>;

// Returns the graph's float32 outputs by name. `feeds`: the bytes of each input and parameter.
// `context`: seed and step for random operators. Returns kInput if a node reads a value that
// neither `feeds` nor another node provides, and kernel errors with the node as a prefix.
Result<std::map<std::string, std::vector<float>>> run_forward(const Graph& graph, Feeds feeds,
                                                              const StepContext& context = {});

}  // namespace ofsdp::runtime
