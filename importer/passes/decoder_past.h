// without_past: a decoder as it is trained, without the keys and values of earlier steps.
//
// Model builders write decoders for generation: each attention reads a past and writes past and
// present joined. An input of the graph that only past inputs of attention operators read is a past
// of no length here, so it is left out, and with it the outputs that hold the present. A Shape may
// read it too: masks are made from the length of the past.
//
// Pure. Threads: any. Errors: kInput for a past that has a column or a fixed length.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

struct PastFree {
  Graph graph;
  std::vector<std::string> fed_empty;  // inputs that were left out
};

// `columns`: names in the data. REQUIRES: the graph is not specialized yet.
Result<PastFree> without_past(const Graph& graph, const std::vector<std::string>& columns);

// "past.0 and 3 more inputs are fed empty: ..." and a line's end; "": none is.
std::string past_line(const std::vector<std::string>& fed_empty);

}  // namespace ofsdp::importer
