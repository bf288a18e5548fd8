// The operators of ONNX Runtime's gradient graphs.
//
// Threads: any. Errors: kInput with file, node, expected and found.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph.h"
#include "importer/graph/lowering.h"

namespace ofsdp::importer {

// The operators of ONNX Runtime's gradient graphs that have no kernel here (com.microsoft 1; older
// files have some of them in the default domain), as a Lowering:
//
//   ReluGrad(dY, Y), ConvGrad(dY, X, W), ...   the nodes that the forward operator's own gradient
//                                              rule emits
//   ConcatTraining, ReduceSumTraining, ...     the operator of ONNX that they are
//   Scale, BroadcastGradientArgs               their results
//
// So each of these has the kernels, layouts and tests of our own backward.
//
// [Note: sums left out] ONNX Runtime's gradient builder may not know a shape (a symbolic axis of a
// sequence). It then takes an Add for one without broadcasting and writes Identity for its
// gradient. Shapes are known here: the gradient "x_grad" of a smaller x is summed to the shape of
// x.
//
// The OpDefs are constants of the program. Threads: any. Errors: kInput with file, node, expected
// and found.
// https://github.com/microsoft/onnxruntime/blob/v1.19.2/orttraining/orttraining/core/graph/training_op_defs.cc
const Lowering& ort_operators();

// Marks the Identity nodes of a graph that brings its own backward, for `lower` to look at. `ids`:
// the values by name.
void mark_gradient_sums(Graph& graph, const std::map<std::string, ValueId>& ids);

// The gradient operators of ONNX Runtime in terms of ours. A table says which forward operator each
// belongs to and what its inputs and outputs are to that operator. replace_gradient asks the
// forward operator's gradient rule for the nodes, as autodiff does;
// docs/from-onnxruntime-training.md has the list.
//
// Threads: any. Errors: kInput with file, node, expected and found.
std::vector<std::string> ort_gradient_names();  // of the table

// Adds nodes in place of `node`. REQUIRES: the table has its operator.
Status replace_gradient(Graph& graph, const Node& node);

}  // namespace ofsdp::importer
