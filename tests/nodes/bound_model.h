// bind_model: a node test's model for one data set, in the importer's terms: only tensors.
// SequenceConstruct puts an input sequence together from tensors; SequenceAt and SequenceLength
// take an output sequence apart; Optional and OptionalGetElement do the same.
//
// Inputs stay inputs, or become Constant nodes if `constants` is set: `If` conditions, positions in
// sequences and other values that the importer must know.
//
// No errors.
#pragma once

#include "tests/nodes/node_test.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

struct BoundModel {
  onnx::ModelProto model;
  std::vector<onnx::TensorProto> inputs;   // the model's, in order, named
  std::vector<onnx::TensorProto> outputs;  // expected, in order
};

BoundModel bind_model(const NodeTest& test, const DataSet& data, bool constants);

}  // namespace ofsdp::nodes
