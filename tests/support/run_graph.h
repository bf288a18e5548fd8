// Runs a specialized graph node by node with kernels, every value in separate memory: the second,
// dumber way next to schedule, memory plan and executor.
//
// `feeds` holds inputs, parameters and the loss weight by value; results come back for all values.
// Ownership: values. Threads: one. Errors: those of kernels; a missing feed is a test failure.
#pragma once

#include <map>

#include "importer/graph/graph.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {

using Floats = std::vector<float>;

Result<std::map<ValueId, Floats>> run_graph(const Graph& graph,
                                            const std::map<std::string, Floats>& feeds);

// normal(0,1) for every float input and parameter, only from the name; 1 for the loss
// weight.
std::map<std::string, Floats> random_feeds(const Graph& graph);

}  // namespace ofsdp::testing
