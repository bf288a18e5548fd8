// The labels that a loss compares with, found in the graph: by them evaluation counts right answers.
// loss_count (importer/passes/loss.h) is made of the same.
//
// Ownership: none. Threads: any. Errors: those of adding nodes.
#pragma once

#include "importer/passes/loss.h"

namespace ofsdp::importer {

// graph.matches, where prediction (0: none) and labels allow it; the graph has its loss.
Status add_matches(Graph& graph, const LossSpec& spec, ValueId prediction);

}  // namespace ofsdp::importer
