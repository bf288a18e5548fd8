// The weights that Muon takes: those of two axes, except tables that a Gather reads and the head,
// the weight of the last product before the first prediction.
//
// Pure.
#pragma once

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"

namespace ofsdp::runtime {

struct MuonWeight {
  bool matrix = false;  // of two axes
  bool table = false, head = false;
  bool in_by_out = false;  // stored so that rows are what its product takes in

  bool taken() const { return matrix && !table && !head; }
};

// Per parameter of the graph.
std::vector<MuonWeight> muon_weights(const Graph& graph, const LossSpec& loss);

}  // namespace ofsdp::runtime
