// without_past: a decoder for training, without the keys and values of earlier steps.
//
// Model builders write decoders for generation: each attention reads a past and writes past and
// present joined. If only past inputs of attention operators read an input of the graph, the past
// has no length here. The input goes away, and so do the outputs that hold the present. A Shape may
// also read it, because masks depend on the length of the past.
//
// Errors: kInput for a past that has a column or a fixed length.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct PastFree {
  Graph graph;
  std::vector<std::string> fed_empty;  // inputs that were removed
};

// `columns`: names in the data. REQUIRES: the graph is symbolic.
Result<PastFree> without_past(const Graph& graph, const std::vector<std::string>& columns);

// Returns "past.0 and 3 more inputs are fed empty: ..." with a line end, or "" if there are none.
std::string past_line(const std::vector<std::string>& fed_empty);

}  // namespace ofsdp::importer
