// --free-batch: a file that fixes its batch at 1 runs with any batch, if it answers for two samples
// together as for each of them alone. check_free_batch runs both, without randomness and with the
// statistics of an evaluation, and compares all outputs.
//
// `one` and `two` are the same graph, specialized for one and for two samples. `rows` has a column
// for each input. Errors: kInput naming the output, and the first node whose value differs; kernel
// errors, with the node as a prefix.
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

Status check_free_batch(const Graph& one, const Graph& two, RowSource& rows,
                        const ReadWeight& read);

// Reads a parameter from its file.
Status read_weight(const OnnxFile& file, const Graph& graph, const Parameter& p,
                   std::vector<std::byte>& bytes);

}  // namespace ofsdp::runtime
