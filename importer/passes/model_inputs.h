// Passes that change the inputs of a graph: inputs with one value, a decoder's past, and the
// documents that share a row.
//
// Errors: kInput naming file, flag and input.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// separate_documents lets documents share a row of `length` tokens (--pack). The graph gets two
// inputs, int64 [batch, length]: the document of each token, and its place in the document. Each
// Attention, and each Softmax over [batch, heads, length, length], sees a key only from its own
// document. Where a table of the row's places, which no input reaches, meets tokens [batch, length,
// width] in an Add, Sub, Mul or Div, its rows are read at the places in the documents. Works on
// specialized graphs after fuse. A mask serves all layers.
//
// Whether documents are apart then is for a forward pass to say (runtime/train/setup/packing.h).
// Errors: kInput if a node does not take its operands any more.
inline constexpr const char* kSegmentsInput = "ofsdp.segments";
inline constexpr const char* kPositionsInput = "ofsdp.positions";
Result<Graph> separate_documents(const Graph& graph, int64_t batch, int64_t length);

// with_values: a graph without inputs that have one value in every batch (--input): constants take
// their places. The file keeps the inputs.

struct InputValue {
  double number = 0;     // of every element
  ConstantPtr tensor{};  // in place of `number`
};
using InputValues = std::map<std::string, InputValue>;  // input name -> value

// Returns a tensor that holds one number everywhere; null if the dtype cannot hold it.
ConstantPtr filled_constant(DType dtype, const Shape& shape, double number);

// An input that gets a number may have one axis of unknown size, which gets the batch's. Names that
// are no inputs are kInput unless `some`. Errors: kInput naming --input.
Result<Graph> with_values(const Graph& graph, const InputValues& values, bool some = false);

// without_past: a decoder for training, without earlier steps' keys and values.
//
// Model builders write decoders for generation: each attention reads a past and writes past and
// present joined. If only past inputs of attention operators read a graph input, the past has
// length 0 here. The input goes away, and so do the outputs that hold the present. A Shape may also
// read it, because masks depend on the past's length.
//
// Errors: kInput for a past that has a column or a fixed length.

struct PastFree {
  Graph graph;
  std::vector<std::string> fed_empty;  // inputs that were removed
};

// `columns`: names in the data. REQUIRES: the graph is symbolic.
Result<PastFree> without_past(const Graph& graph, const std::vector<std::string>& columns);

// Returns "past.0 and 3 more inputs are fed empty: ..." with a line end, or "" if there are none.
std::string past_line(const std::vector<std::string>& fed_empty);

}  // namespace ofsdp::importer
