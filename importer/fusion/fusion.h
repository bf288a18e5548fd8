// fuse: rewrites of a specialized graph into operators that do the same with fewer passes over
// memory. Exporters take apart what the graph's author wrote in one piece; here it comes together
// again.
//
// Each rewrite is a FusionRule in a file of its own. A rule looks at one node, the last of its
// pattern, and replaces it; nodes that nobody needs afterwards are dropped. Values that somebody
// else reads stay. Rules can be switched off by name, and tests compare both ways.
//
// `wanted` are the values that must stay: loss, gradients' sources, outputs. Graph::fused counts
// what was done, for the plan's print.
//
// Ownership: values. Threads: any. Errors: none; a pattern that does not fit is left alone.
#pragma once

#include <set>

#include "importer/graph.h"

namespace ofsdp {

Graph fuse(const Graph& graph, const std::vector<ValueId>& wanted,
           const std::set<std::string>& switched_off = {});

std::vector<std::string> fusion_names();

}  // namespace ofsdp
