// The operators of ONNX Runtime's gradient graphs. Errors: kInput with file, node, expected and
// found.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// Operators of ONNX Runtime's gradient graphs without a kernel here (com.microsoft 1; older files
// have some in the default domain), as a Lowering:
//
//   ReluGrad(dY, Y), ConvGrad(dY, X, W), ...   the nodes that the gradient rule of the forward
//                                              operator emits
//   ConcatTraining, ReduceSumTraining, ...     the equal operator of ONNX
//   Scale, BroadcastGradientArgs               their results
//
// So each has the kernels, layouts and tests of our own backward.
//
// [Note: sums left out] ONNX Runtime's gradient builder may not know a shape (a symbolic axis of a
// sequence). It then takes an Add for one without broadcasting and writes Identity for its
// gradient. Here shapes are known: the gradient "x_grad" of a smaller x is summed to the shape of
// x.
//
// https://github.com/microsoft/onnxruntime/blob/v1.19.2/orttraining/orttraining/core/graph/training_op_defs.cc
const Lowering& ort_operators();

// Marks the Identity nodes of a graph that brings its own backward for `lower`. `ids`: values by
// name.
void mark_gradient_sums(Graph& graph, const std::map<std::string, ValueId>& ids);

// Gradient operators of ONNX Runtime, expressed by ours. A table has the forward operator of each,
// and the meaning of the inputs and outputs for that operator. replace_gradient asks the gradient
// rule of the forward operator for the nodes, as autodiff does. docs/from-onnxruntime-training.md
// has the list.
std::vector<std::string> ort_gradient_names();  // of the table

// Adds nodes in place of `node`. REQUIRES: the table has the operator.
Status replace_gradient(Graph& graph, const Node& node);

}  // namespace ofsdp::importer
