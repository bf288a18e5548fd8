// The forward pass of a graph, node by node, every value in memory of its own: for looking at a
// model (fsdp-run export --verify), not for training it.
//
// `context`: of random operators. `feeds` has the bytes of inputs and parameters by value. Gives
// the graph's outputs that are float32, by name. Ownership: values. Threads: one. Errors: what
// kernels say, with the node; kInput for a value that is neither made nor fed.
#pragma once

#include <map>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::runtime {

using Feeds = std::map<ValueId, std::vector<std::byte>>;

Result<std::map<std::string, std::vector<float>>> run_forward(const Graph& graph, Feeds feeds,
                                                              const StepContext& context = {});

}  // namespace ofsdp::runtime
