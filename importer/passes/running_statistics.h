// carry_statistics: finds the running statistics of a training graph. Outputs 1 and 2 of a
// BatchNormalization with training_mode=1 become the next values of the initializers at its inputs
// 3 and 4 (ONNX's population variance), also where the file leaves these outputs out; statistics
// that --freeze names stay. Statistics computed by other nodes are left alone.
//
// Ownership: changes the graph it is given. Threads: any. Errors: kInput from inference.
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Status carry_statistics(Graph& graph);

}  // namespace ofsdp::importer
