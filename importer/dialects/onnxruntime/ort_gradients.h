// The gradient operators of ONNX Runtime in terms of ours. A table says which forward operator each
// belongs to and what its inputs and outputs are to that operator. replace_gradient asks the
// forward operator's gradient rule for the nodes, as autodiff does;
// docs/from-onnxruntime-training.md has the list.
//
// Threads: any. Errors: kInput with file, node, expected and found.
#pragma once

#include <string>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

std::vector<std::string> ort_gradient_names();  // of the table

// Adds nodes in place of `node`. REQUIRES: the table has its operator.
Status replace_gradient(Graph& graph, const Node& node);

}  // namespace ofsdp::importer
