// mark_training: BatchNormalization of a file before opset 14, made ready for ONNX's version
// converter, which takes it for inference. Until opset 13 there is no training_mode: a node trains
// where it has more than one output, and its outputs 3 and 4 (what a backward pass keeps) are gone
// since opset 14.
//
// Ownership: changes the model it is given. Threads: any. Errors: none; outputs 3 and 4 that
// somebody reads stay, and the converter refuses the node.
// https://onnx.ai/onnx/operators/text_diff_BatchNormalization_9_14.html
#pragma once

#include <onnx/onnx_pb.h>

namespace ofsdp::importer {

void mark_training(onnx::GraphProto& graph);

}  // namespace ofsdp::importer
