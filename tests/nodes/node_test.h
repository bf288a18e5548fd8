// NodeTest: one folder of ONNX's backend node tests: model.onnx and, per data set, values for all
// inputs and outputs (input_0.pb, output_0.pb, ...): tensors, sequences of tensors or optional
// ones.
//
// Errors: kInput naming the file.
#pragma once

#include <onnx/onnx-data.pb.h>
#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

struct TestValue {
  enum class Kind { kTensor, kSequence, kNone };  // kNone: an absent optional value

  Kind kind = Kind::kTensor;
  bool optional = false;
  onnx::TensorProto tensor;
  std::vector<onnx::TensorProto> items;
};

struct DataSet {
  std::vector<TestValue> inputs;  // in the order of the model's inputs
  std::vector<TestValue> outputs;
};

struct NodeTest {
  std::string name;  // the folder's
  onnx::ModelProto model;
  std::vector<DataSet> data_sets;
};

Result<NodeTest> read_node_test(const std::string& folder);

}  // namespace ofsdp::nodes
