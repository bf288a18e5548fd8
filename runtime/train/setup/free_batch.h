// --free-batch: a file that fixes its batch runs with any batch, if it answers for its batch (for
// two, if that is 1) together as for each sample alone. check_free_batch runs both, without
// randomness and with the statistics of an evaluation, and compares all outputs.
//
// `rows` has a column for each input. Errors: kInput naming the output, and the first node whose
// value differs; kernel errors, with the node as a prefix.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

// Reads a parameter as the graph has it.
using ReadWeight = std::function<Status(const Parameter& p, std::vector<std::byte>& bytes)>;

// One graph, specialized for one and for `samples` samples.
struct FreeBatchGraphs {
  Graph one, several;
  int64_t samples;
};

// `made` specializes the graph for so many samples; `fixed`: the batch in the file.
Result<FreeBatchGraphs> free_batch_graphs(int64_t fixed,
                                          const std::function<Result<Graph>(int64_t)>& made);

Status check_free_batch(const FreeBatchGraphs& graphs, RowSource& rows, const ReadWeight& read);

// Reads a parameter from its file.
Status read_weight(const OnnxFile& file, const Graph& graph, const Parameter& p,
                   std::vector<std::byte>& bytes);

}  // namespace ofsdp::runtime
