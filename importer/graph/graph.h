// A model as the rest of the program sees it. import_onnx (importer/normalize/onnx_import.h)
// returns it with symbolic input axes; the passes in importer/pipeline.h return a micro-batch's
// graph, with all shapes known. Each pass takes a graph and returns a new one; a finished graph
// does not change.
//
// Values are numbered from 1 (0 means "absent"), and nodes stand in an order in which they can run.
// A parameter is a floating-point initializer, trained or not; a tied weight is one parameter.
// `text(graph)` is stable, for reading and golden tests.
//
// Graphs share constants. The Registry owns the OpDefs and must outlive every graph. Follows the
// ONNX IR (https://onnx.ai/onnx/repo-docs/IR.html).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"

namespace ofsdp::importer {

// A std::vector for values, nodes or parameters. In a build with AddressSanitizer it moves to other
// memory whenever it grows.
//
// [Note: references into a graph] A reference to an element is valid until the list grows. With
// spare capacity the element often stays where it was, so a wrong use passes nearly every test and
// fails in a user's run. MovingVector never lets it stay: the first test that makes the mistake
// reports it, with the stack that freed the element.

template <typename T>
class MovingVector : public std::vector<T> {
 public:
  using Base = std::vector<T>;
  using Base::Base;
  MovingVector(Base list) : Base(std::move(list)) {}  // NOLINT: implicit on purpose

  void push_back(T element) {
    move_elsewhere(this->size() + 1);
    Base::push_back(std::move(element));
  }

  template <typename... Args>
  T& emplace_back(Args&&... args) {
    push_back(T(std::forward<Args>(args)...));
    return this->back();
  }

  void resize(size_t size) {
    if (size > this->size()) move_elsewhere(size);
    Base::resize(size);
  }

  template <typename Iterator>
  void insert(typename Base::const_iterator at, Iterator first, Iterator last) {
    const auto place = at - this->cbegin();
    Base all(this->cbegin(), this->cbegin() + place);
    all.insert(all.end(), first, last);
    all.insert(all.end(), this->cbegin() + place, this->cend());
    this->swap(all);
  }

 private:
  // Copying the list at every growth takes quadratic time. Longer lists than any unit test grows
  // element by element move as std::vector does.
  static constexpr size_t kMaxMoved = 4096;

  void move_elsewhere(size_t size) {
    if (size > kMaxMoved) return;
    Base moved;
    moved.reserve(size);
    for (T& element : *this) moved.push_back(std::move(element));
    this->swap(moved);
  }
};

#if defined(__SANITIZE_ADDRESS__)
template <typename T>
using GraphVector = MovingVector<T>;
#else
template <typename T>
using GraphVector = std::vector<T>;
#endif

using ValueId = int32_t;  // 0: absent

struct Dim {
  int64_t size = -1;   // -1: symbolic
  std::string symbol;  // may be empty: unknown and unnamed
};

enum class ValueKind : uint8_t {
  kAbsent,
  kInput,       // a data column
  kParameter,   // initializer, read from the file into shards or kept whole
  kConstant,    // known while planning
  kActivation,  // made by a node
  kLossWeight,  // float32 scalar: a loss term's weight, set before each micro-batch
};

struct Value {
  std::string name;
  ValueKind kind = ValueKind::kActivation;
  TensorDesc desc;  // the dtype is always known; input and activation shapes once specialized
  std::vector<Dim> declared{};  // inputs and outputs: axes as the file declares them
  ConstantPtr constant{};       // for kConstant, and for parameters with at most 16 elements
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
  bool raw = false;         // nodes read the stored bytes; the value's desc describes them
  std::string reason;       // if not trained: the reason
  ValueId gradient = 0;     // a trained parameter's, after autodiff
  std::string module{};     // path of the module that has it (importer/normalize/onnx_import.h)
  bool of_teacher = false;  // `initializer` indexes the teacher's file (importer/passes/loss.h)
};

// A parameter that the graph updates itself, once per micro-batch: running statistics.
struct Carried {
  int parameter = 0;  // index in Graph::parameters; not trained
  ValueId next = 0;
};

// A prediction's rows for metrics, with classes or with number columns
// (kernels/ops/loss/measures.cpp).
struct Measured {
  ValueId rows = 0;
  bool classes = false;
  int64_t width = 0;  // classes or columns
  // The loss is bce_with_logits or bce: a number above this predicts a label 1.
  std::optional<double> threshold = {};
  bool sequences = false;  // a row per sample: ofsdp.MeasureCtc
};

// A mean or a sum; the loss is the weighted sum of the terms.
struct LossTerm {
  ValueId value = 0;   // float32 scalar
  ValueId weight = 0;  // training graph only: the micro-batch's share of the mean, times factor
  double factor = 1;
  int loss = 0;            // index of the --loss that has the rows or labels
  bool numerator = false;  // a sum, which the run divides by the labels of the global batch
};

// All terms' weights fit into one aligned memory block.
inline constexpr size_t kMaxLossTerms = 16;

struct Graph {
  std::string file;  // for messages
  const Registry* registry = nullptr;
  GraphVector<Value> values{1};
  GraphVector<Node> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  GraphVector<Parameter> parameters;
  std::vector<Carried> carried;                // training graphs only
  std::vector<std::string> initializers;       // all initializers in the file, in any type
  std::map<std::string, int> fused;            // fusion rule -> how often
  std::map<std::string, std::string> classes;  // path of a module -> its class, if known
  std::vector<std::string> left_out{};         // outputs of the file that nothing here computes
  std::vector<std::string> class_names{};      // of the file's label operators, by class
  std::vector<LossTerm> terms{};  // of each --loss, then of a teacher; attach_losses fills the list
  ValueId matches = 0;  // int64[2], evaluation graph only: right answers, labels that count
  std::vector<Measured> measured{};  // evaluation graph only

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<size_t>(id)]; }
  ValueId find(const std::string& name) const;  // 0 if there is none
  bool has_loss() const { return !terms.empty() && terms[0].value != 0; }
  // Returns "model.onnx: node 'fc1' (Gemm)".
  std::string describe(const Node& node) const;
};

std::string text(const Graph& graph);

// Returns a random node's seed: different for each node in a graph, equal in every run.
uint64_t node_seed(const Node& node);

// Adds nodes to a specialized graph and changes them. All passes go through a GraphEditor: it asks
// the operator (OpDef::infer) whether it takes a node's operands and gives the values at the
// outputs.
//
// Compares descs by dtype and shape only. Passes choose layout and pitch (assign_layouts,
// pitch_rows).
class GraphEditor {
 public:
  explicit GraphEditor(Graph& graph) : graph_(graph) {}

  // Registry::get takes `op`. Outputs are named after the node.
  Result<std::vector<ValueId>> add(const std::string& op, const std::string& node_name,
                                   const std::vector<ValueId>& inputs,
                                   const Attributes& attributes = {}, size_t num_outputs = 1,
                                   bool backward = false);
  Result<ValueId> add1(const std::string& op, const std::string& node_name,
                       const std::vector<ValueId>& inputs, const Attributes& attributes = {});
  ValueId add_constant(const std::string& name, ConstantPtr value);
  ValueId add_value(Value value);

  // Appends a node. REQUIRES: the values at the outputs exist.
  Status place(Node made);
  // The same, but sets the output values' descs to the operator's results.
  Status place_inferred(Node made);

  // Replaces `node` by `made`. `node` may stand in the graph or in a list that a pass inserts
  // later. On error nothing has changed.
  Status change(Node& node, Node made);

  // The same, but sets the output values' descs. For passes that change types or shapes on purpose
  // (lower_precision, evaluation, new outputs).
  Status change_descs(Node& node, Node made);

  // The same before shapes are known. No operator can check it; `specialize` does so later.
  static void change_symbolic(Node& node, Node made) { node = std::move(made); }

 private:
  Graph& graph_;
};

// Returns an error that names node and output if the operator refuses the operands, or gives other
// dtypes or shapes than the output values have.
Status check_outputs(const Graph& graph, const Node& node);

// Returns a node's output descs, inferred from the input descs.
Result<std::vector<TensorDesc>> infer_outputs(const Graph& graph, const Node& node);

// Drops nodes that no value in `wanted` needs.
void prune(Graph& graph, const std::vector<ValueId>& wanted);

// Tells which node makes a value and which nodes read it, by index in the graph. It is a snapshot:
// if nodes change, make it again. Small helpers for passes follow.

class GraphUses {
 public:
  GraphUses() = default;
  // Ignores nodes marked in `dropped`, which may be empty.
  explicit GraphUses(const Graph& graph, const std::vector<bool>& dropped = {})
      : maker_(graph.values.size(), -1), readers_(graph.values.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (i < dropped.size() && dropped[i]) continue;
      for (ValueId id : graph.nodes[i].outputs) add_maker(id, i);
      for (ValueId id : graph.nodes[i].inputs) {
        if (id != 0) add_reader(id, i);
      }
    }
    if (!maker_.empty()) maker_[0] = -1;
  }

  int maker(ValueId id) const { return maker_[static_cast<size_t>(id)]; }  // -1: no node
  const std::vector<size_t>& readers(ValueId id) const { return readers_[static_cast<size_t>(id)]; }

  void add_maker(ValueId id, size_t node) {
    maker_[static_cast<size_t>(id)] = static_cast<int>(node);
  }
  void add_reader(ValueId id, size_t node) { readers_[static_cast<size_t>(id)].push_back(node); }

 private:
  std::vector<int> maker_;
  std::vector<std::vector<size_t>> readers_;
};

// Returns the value and all its views, views of views too. REQUIRES: `Uses` has readers(value) and
// node(index).
template <typename Uses>
std::vector<ValueId> with_views(const Uses& uses, ValueId id) {
  std::vector<ValueId> found{id};
  std::set<ValueId> seen{id};
  for (size_t at = 0; at < found.size(); ++at) {
    for (size_t reader : uses.readers(found[at])) {
      const Node& node = uses.node(reader);
      if (node.op->view && seen.insert(node.outputs[0]).second) found.push_back(node.outputs[0]);
    }
  }
  return found;
}

// Returns whether the node runs that operator and no plug-in has replaced it.
inline bool is_operator(const Node& node, std::string_view op) {
  const std::vector<Implementation>& made = node.op->cpu;
  return node.op->full_name() == op && (made.empty() || made[0].name != "plug-in");
}

// Returns the node that makes the value, or null.
inline const Node* maker_of(const Graph& graph, ValueId id) {
  for (const Node& node : graph.nodes) {
    if (std::ranges::find(node.outputs, id) != node.outputs.end()) return &node;
  }
  return nullptr;
}

// Returns the loss terms, the buffers' next values and the parameter gradients.
inline std::vector<ValueId> trained_values(const Graph& graph) {
  std::vector<ValueId> wanted;
  for (const LossTerm& term : graph.terms) wanted.push_back(term.value);
  for (const Carried& c : graph.carried) wanted.push_back(c.next);
  for (const Parameter& p : graph.parameters) {
    if (p.gradient != 0) wanted.push_back(p.gradient);
  }
  return wanted;
}

// Infers a node's output descs and sets them. Returns all.
inline Result<std::vector<TensorDesc>> infer_descs(Graph& graph, const Node& node) {
  OFSDP_ASSIGN_OR_RETURN(auto descs, infer_outputs(graph, node));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != 0) graph.value(node.outputs[i]).desc = descs[i];
  }
  return descs;
}

// Adds an int64 constant with one axis.
inline ValueId add_ints(Graph& graph, const std::string& name, const std::vector<int64_t>& values) {
  const Shape shape{static_cast<int64_t>(values.size())};
  return GraphEditor(graph).add_constant(name,
                                         make_constant<int64_t>(DType::kInt64, shape, values));
}

// Runs one node while planning and turns the outputs into constants. REQUIRES: the inputs are
// constants; operators that read only shapes need only shapes. Errors: the kernel's, with file and
// node.

Status fold(Graph& graph, const Node& node);

// Runs `node`'s operator on `inputs` (null: absent) without a graph. Returns the first output.
Result<ConstantPtr> fold_one(const Registry& registry, const Node& node,
                             const std::vector<ConstantPtr>& inputs);

// Operators that another program writes into graphs and that have no kernel here. The importer
// keeps them as nodes; once shapes are known, `specialize` asks the Lowering for nodes that replace
// them. A Lowering must outlive every graph with its operators. Errors: kInput naming the node.

class Lowering {
 public:
  virtual ~Lowering() = default;
  // Returns the operator if such a node must be lowered, else null.
  virtual const OpDef* find(const std::string& domain, const std::string& name) const = 0;
  // Returns true if other nodes in `graph` replaced `node`. Returns false if `node`, perhaps
  // changed, must still be added, as for other operators.
  virtual Result<bool> lower(Graph& graph, Node& node) const = 0;
};

// The operators that a model may use: the registry first, then a Lowering.
struct Operators {
  Operators(const Registry& known, const Lowering* more = nullptr)  // NOLINT: implicit
      : registry(known), lowering(more) {}

  const OpDef* find(const std::string& domain, const std::string& name) const {
    const OpDef* op = registry.find(domain, name);
    return op != nullptr || lowering == nullptr ? op : lowering->find(domain, name);
  }

  const Registry& registry;
  const Lowering* lowering;  // may be null
};

// All ranks' rows within a micro-batch, for synchronized batch normalization (passes/passes.h) and
// the contrastive loss (passes/loss.h). A node ofsdp.JoinRows (kernels/core/planned_operands.h)
// takes this rank's rows and returns all ranks' rows. The kernel writes only this rank's part. The
// schedule posts the rows once they are ready, and waits for the other ranks before the first node
// that reads them (PostRows, JoinRows in runtime/compile/program/schedule.h). One rank has nothing
// to join.

// The ranks that join rows in a micro-batch, seen from this rank.
struct RankRows {
  int ranks = 1;
  int rank = 0;
  int64_t samples = 1;  // a rank's maximum in a micro-batch

  bool several() const { return ranks > 1; }
  // Returns ofsdp.JoinRows's attributes if each rank has at most `most` rows.
  Attributes join(int64_t most) const {
    return {{"ranks", int64_t{ranks}}, {"rank", int64_t{rank}}, {"most", most}};
  }
};

// Returns whether the schedule runs the node together with all ranks.
inline bool joins_rows(const OpDef& op) { return op.domain == kOwnDomain && op.name == "JoinRows"; }

// Returns whether the node needs only joined rows and state, so a rank without samples must run it.
inline bool runs_without_rows(const OpDef& op) {
  return op.domain == kOwnDomain && op.name == "JoinedStatistics";
}

}  // namespace ofsdp::importer
