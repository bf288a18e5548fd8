// bind_model: the model of a node test for one data set, in terms the importer has: tensors alone.
// A sequence that goes in is put together by SequenceConstruct from tensors, one that comes out is
// taken apart by SequenceAt and SequenceLength; so are Optional and OptionalGetElement.
//
// Inputs stay inputs, or become Constant nodes where `constants` says so: `If` conditions,
// positions in sequences and the like, which the importer must know.
//
// No errors.
#pragma once

#include "tests/nodes/node_test.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

struct BoundModel {
  onnx::ModelProto model;
  std::vector<onnx::TensorProto> inputs;   // of the model, in order, named
  std::vector<onnx::TensorProto> outputs;  // expected, in order
};

BoundModel bind_model(const NodeTest& test, const DataSet& data, bool constants);

}  // namespace ofsdp::nodes
