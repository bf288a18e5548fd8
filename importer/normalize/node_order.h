// The order of nodes. Some tools append nodes out of order (onnxconverter's float16 puts the casts
// of inputs last), and ONNX Runtime loads such files, since it sorts them itself.
//
// Changes the graph. Threads: one. Errors: none.
#pragma once

#include <onnx/onnx_pb.h>

namespace ofsdp::importer {

// Puts every node of `graph`, and of the graphs in its attributes, after the nodes whose values it
// reads. Nodes that are in order keep their places. A graph with a cycle stays as it is: ONNX's
// checker has the words for it.
void sort_nodes(onnx::GraphProto& graph);

}  // namespace ofsdp::importer
