// The operators of ONNX Runtime's gradient graphs (com.microsoft 1; older ones have some of them in
// the default domain) that are no operators here, and what takes their place in a specialized graph:
//
//   ReluGrad(dY, Y), ConvGrad(dY, X, W), ...   what the forward operator's own gradient rule emits
//   ConcatTraining, ReduceSumTraining, ...     the operator of ONNX that they are
//   Scale, BroadcastGradientArgs               what they compute
//
// So each of these has the kernels, layouts and tests of our own backward.
//
// [Note: sums left out] Where ONNX Runtime's gradient builder does not know a shape (a symbolic axis
// of a sequence), it takes an Add for one without broadcasting and writes Identity for its gradient.
// Here shapes are known: the gradient "x_grad" of a smaller x is summed to the shape of x.
//
// ort_operator gives what the importer has in a Node until specialize calls `take`, which adds the
// nodes in place of one such or gives it its other name. OrtOperators refers to the graph that is
// being specialized.
//
// Ownership: the OpDefs are constants of the program. Threads: any. Errors: kInput with file, node,
// expected and found.
// https://github.com/microsoft/onnxruntime/blob/v1.19.2/orttraining/orttraining/core/graph/training_op_defs.cc
#pragma once

#include <string>
#include <unordered_map>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// Null for those that have no place here.
const OpDef* ort_operator(const std::string& domain, const std::string& name);

class OrtOperators {
 public:
  explicit OrtOperators(Graph& graph);

  // Adds what takes the node's place; false when `node` is still to be added.
  Result<bool> take(Node& node);

 private:
  void sum_gradient(Node& node) const;

  Graph& graph_;
  std::unordered_map<std::string, ValueId> names_;  // of a graph that brings its own backward
};

}  // namespace ofsdp::importer
