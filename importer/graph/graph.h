// Graph: a model as the rest of the program sees it. Produced by import_onnx
// (importer/onnx_import.h) with symbolic input axes; `specialize` gives the same graph for concrete
// input shapes, with every value's desc known and shape computations folded; attach_loss, autodiff
// and assign_layouts add to that. Each pass takes a graph and gives a new one; a finished graph is
// not changed.
//
// Values are numbered from 1 (0 is "absent"), nodes stand in an order in which they can run. A
// parameter is one floating initializer of the file, whether trained or not; a tied weight is one
// parameter. `text(graph)` is stable and made for reading and golden tests.
//
// Ownership: values; constants are shared; OpDefs belong to the Registry, which outlives every
// graph. Threads: any, once finished. Follows the ONNX IR (https://onnx.ai/onnx/repo-docs/IR.html).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph_vector.h"
#include "kernels/core/memory.h"
#include "kernels/core/registry.h"

namespace ofsdp::importer {

using ValueId = int32_t;  // 0: absent

struct Dim {
  int64_t size = -1;   // -1: symbolic
  std::string symbol;  // may be empty: unknown and unnamed
};

enum class ValueKind : uint8_t {
  kAbsent,
  kInput,       // a column of the data
  kParameter,   // an initializer that is read from the file into shards or kept whole
  kConstant,    // known while planning
  kActivation,  // made by a node
  kLossWeight,  // float32 scalar set before each micro-batch: a term's weight in the loss
};

struct Value {
  std::string name;
  ValueKind kind = ValueKind::kActivation;
  TensorDesc desc;              // dtype always; shape of inputs and activations once specialized
  std::vector<Dim> declared{};  // inputs and outputs: the axes as the file states them
  ConstantPtr constant{};       // kConstant; also of parameters of at most 16 elements
};

struct Node {
  const OpDef* op = nullptr;
  std::string name;
  Attributes attributes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  bool backward = false;
};

struct Parameter {
  std::string name;
  ValueId value = 0;
  int initializer = 0;  // index in OnnxFile::initializers()
  bool trained = false;
  bool raw = false;      // nodes read the raw data of its initializer, as its value's desc says
  std::string reason;    // why not trained
  ValueId gradient = 0;  // after autodiff, of trained ones
  std::string
      module{};  // the path of the module it belongs to (importer/normalize/module_scopes.h)
  bool of_teacher =
      false;  // `initializer` is one of the teacher's file (importer/passes/teacher.h)
};

// A parameter that the graph itself gives its next value, once a micro-batch: running statistics.
struct Carried {
  int parameter = 0;  // index in Graph::parameters; not trained
  ValueId next = 0;
};

// Rows that metrics are made from, of a prediction with classes or with columns of numbers
// (kernels/ops/loss/measures.cpp).
struct Measured {
  ValueId rows = 0;
  bool classes = false;
  int64_t width = 0;    // classes or columns
  bool logits = false;  // the loss is bce_with_logits
};

// A mean or sum of which the loss is a weighted sum.
struct LossTerm {
  ValueId value = 0;   // float32 scalar
  ValueId weight = 0;  // of the training graph: the micro-batch's share of the mean, times factor
  double factor = 1;
  int loss = 0;  // which --loss: its rows, or labels, are what the mean or sum is over
};

// Their weights have one alignment of memory.
inline constexpr size_t kMostLossTerms = 16;

struct Graph {
  std::string file;  // for messages
  const Registry* registry = nullptr;
  GraphVector<Value> values{1};
  GraphVector<Node> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  GraphVector<Parameter> parameters;
  std::vector<Carried> carried;                // of training graphs
  std::vector<std::string> initializers;       // every initializer's name in the file, of any type
  std::map<std::string, int> fused;            // fusion rule -> how often
  std::map<std::string, std::string> classes;  // path of a module -> its class, as far as known
  ValueId loss = 0;                            // the value of the first term, like the next two
  ValueId loss_weight = 0;
  double loss_factor = 1;
  std::vector<LossTerm> further_terms{};
  ValueId matches = 0;               // int64[2] of the evaluation graph: right answers, kept labels
  std::vector<Measured> measured{};  // of the evaluation graph

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<size_t>(id)]; }
  ValueId find(const std::string& name) const;  // 0 when there is none
  std::vector<LossTerm> terms() const;          // all of them
  // "model.onnx: node 'fc1' (Gemm)"
  std::string describe(const Node& node) const;
};

std::string text(const Graph& graph);

// The seed of a random node: another one for each node of a graph, the same in every run.
uint64_t node_seed(const Node& node);

// Adds to a specialized graph and changes it. Every operator is asked (OpDef::infer) whether it
// takes the operands of a node, and gives the values that stand at the outputs; a node that a pass
// makes or changes comes into the graph through here alone.
//
// Descs are compared by dtype and shape: layout and pitch belong to the value, and passes decide
// them (assign_layouts, pitch_rows).
class GraphEditor {
 public:
  explicit GraphEditor(Graph& graph) : graph_(graph) {}

  // `op` as Registry::get takes it; outputs are named after the node.
  Result<std::vector<ValueId>> add(const std::string& op, const std::string& node_name,
                                   const std::vector<ValueId>& inputs,
                                   const Attributes& attributes = {}, size_t num_outputs = 1,
                                   bool backward = false);
  Result<ValueId> add1(const std::string& op, const std::string& node_name,
                       const std::vector<ValueId>& inputs, const Attributes& attributes = {});
  ValueId add_constant(const std::string& name, ConstantPtr value);
  ValueId add_value(Value value);

  // Appends a node whose outputs are values that stand already.
  Status place(Node made);
  // The same; the values get the descs that the operator gives.
  Status place_inferred(Node made);

  // Puts `made`, with another operator, other operands, outputs or attributes, where `node` is: in
  // the graph, or in a list of nodes that a pass puts into it. Returns what does not fit, and
  // changes nothing then.
  Status change(Node& node, Node made);

  // The same for a pass that changes types or shapes on purpose (lower_precision; evaluation; new
  // outputs): the values at the outputs get the descs that the operator gives.
  Status change_descs(Node& node, Node made);

  // The same before shapes are known, where no operator can be asked: `specialize` asks all.
  static void change_symbolic(Node& node, Node made) { node = std::move(made); }

 private:
  Graph& graph_;
};

// Returns an error naming node and output unless the node's operator takes its operands and gives
// the dtypes and shapes of the values at its outputs.
Status check_outputs(const Graph& graph, const Node& node);

// The descs of a node's outputs from the graph's present knowledge of its inputs.
Result<std::vector<TensorDesc>> infer_outputs(const Graph& graph, const Node& node);

// Drops nodes that none of `wanted` needs.
void prune(Graph& graph, const std::vector<ValueId>& wanted);

}  // namespace ofsdp::importer
