// DrawnGraph: a random model as a list of nodes in the newest opset, each value with its numbers.
// `model_of` writes it as ONNX of an older opset, where the operators allow it.
//
// A value is an input (a data column), a weight (a trained initializer), a constant or a node's
// output. Constants are initializers with integers, else Constant nodes. `values` holds the numbers
// of all, in double, as the references make them.
//
// Ownership: values; OpDefs belong to the registry. Threads: one. Errors: `model_of` throws Refused
// if the opset cannot express the model.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"

namespace ofsdp::graphs {

// A draw that fails: another one is made.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Kind { kInput, kWeight, kConstant, kNode };

struct DrawnValue {
  Kind kind = Kind::kNode;
  RefTensor tensor;
  bool trained = false;  // a weight, or made from one
  bool known = false;    // before the run: a constant, or made from shapes and constants
};

// Control flow around a node that changes nothing; kScan: in place of CumSum.
enum class Around { kNothing, kIf, kLoop, kScan };

struct DrawnNode {
  const OpDef* op = nullptr;
  std::vector<std::string> inputs;  // "": absent
  std::vector<std::string> outputs;
  Attributes attributes;
  Around around = Around::kNothing;
  int64_t rounds = 1;  // for kLoop: the output is the next round's first operand
};

struct DrawnGraph {
  int opset = 28;
  int64_t batch = 2;
  bool fixed_batch = false;
  std::vector<DrawnNode> nodes;
  std::map<std::string, DrawnValue> values;
  std::vector<std::string> inputs;  // in file order
  std::string loss;

  bool has_random() const;  // Dropout: each run draws other numbers
  const RefTensor& tensor(const std::string& name) const { return values.at(name).tensor; }
};

// Drops nodes and values that the loss does not need; inputs stay if none would be left.
void drop_unused(DrawnGraph& graph);

onnx::ModelProto model_of(const DrawnGraph& graph);
// Throws Refused unless the opset can express all nodes from `first` on.
void check_forms(const DrawnGraph& graph, size_t first);

// The number of element `i` of an input, from the input's name: normal(0, 1); with the ending
// "_classesN" a class below N; with "_classesN_ignore" one in five is -100.
std::vector<double> column_values(const std::string& name, const TensorDesc& desc);

// A node's values again, after a change; throws Refused if one is refused.
std::vector<RefTensor> evaluated(const DrawnGraph& graph, const DrawnNode& node);

}  // namespace ofsdp::graphs
