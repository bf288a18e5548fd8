// rewrite_graph resolves everything in an ONNX graph that is not an operator on tensors, before the
// graph becomes a Graph:
//
//   If                     the branch that runs, if the condition is known
//   Loop, Scan             unrolled, if the iteration count is known
//   sequences, optionals   the tensors in them
//   ONNX functions         the body, if the operator has no kernel here
//
// Each has a function at the end.
//
// It works on the model in the newest opset, node by node in order, and resolves new nodes in turn.
// A node that it cannot resolve stays; `reasons` has the reason for each operator.
//
// The registry must outlive the call. Errors: kInput for a wrong node (an index outside a
// sequence).
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/normalize/known_values.h"
#include "importer/normalize/onnx_import.h"

namespace ofsdp::importer {

// Names in an ONNX graph. Makes fresh names, and renames bodies (functions, branches, loops) so
// they do not clash with the graph's names.
using NameMap = std::unordered_map<std::string, std::string>;  // inside -> outside
class GraphNames {
 public:
  explicit GraphNames(const onnx::GraphProto& graph) { collect(graph); }

  // Returns `name` or, if it is taken, `name` followed by a number.
  std::string fresh(const std::string& name);

  // Renames the node: names in `bound` become their bound names. Everything else that the node
  // defines, also in subgraphs, gets a fresh name, which is added to `bound`. Other names belong to
  // an outer graph and stay.
  void rename(onnx::NodeProto& node, NameMap& bound);

 private:
  static void replace(std::string& name, const NameMap& bound);
  void collect(const onnx::GraphProto& graph);
  void rename(onnx::GraphProto& graph, NameMap bound);
  void define(std::string& name, NameMap& bound);

  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> last_;
};

using Reasons = std::map<std::string, std::string>;  // operator, as messages name it -> reason

// `numbers`: inputs that hold one number in each batch.
using InputNumbers = std::map<std::string, double>;
Result<Reasons> rewrite_graph(onnx::ModelProto& model, const Registry& registry,
                              const InputNumbers& numbers = {});

using IntAttributes = std::map<std::string, int64_t>;

// A tensor cut along an axis with unknown size into pieces with `size`: a sequence with unknown
// length.
struct OpenSplit {
  std::string tensor;
  int64_t axis = 0;
  int64_t size = 1;
  bool squeezed = false;  // pieces with size 1 lose the axis
};

class GraphRewriter {
 public:
  GraphRewriter(onnx::ModelProto& model, const Registry& registry, const InputNumbers& numbers);
  Result<Reasons> run();

  // For resolvers. `process` resolves the node or keeps it.
  Status process(onnx::NodeProto node);
  void keep(onnx::NodeProto node) {
    ++made_nodes_;
    made_bytes_ += static_cast<int64_t>(node.ByteSizeLong());
    *model_.mutable_graph()->add_node() = std::move(node);
  }
  Status refuse(onnx::NodeProto node, const std::string& why);
  Status add(const std::string& op, const std::vector<std::string>& inputs,
             const std::vector<std::string>& outputs, const IntAttributes& attributes = {});
  // Makes `to` another name for `from`: a tensor, sequence or optional.
  Status alias(const std::string& from, const std::string& to);
  void constant(const std::string& name, const onnx::TensorProto& tensor);
  // Adds a rank 0 constant; `type` is TensorProto's INT64 or BOOL.
  void scalar(const std::string& name, int type, int64_t value);
  // Adds an int64 constant with one axis. Returns the fresh name.
  std::string ints(const std::vector<int64_t>& values);

  // Processes the body's nodes with `inputs`. Returns the outputs' outer names.
  Result<std::vector<std::string>> process_body(onnx::GraphProto body,
                                                const std::vector<std::string>& inputs);
  // Returns the `count` pieces along `axis`, which goes away; the next function joins pieces.
  Result<std::vector<std::string>> unstack(const std::string& name, int64_t axis, int64_t count);
  Status stack(const std::vector<std::string>& pieces, int64_t axis, const std::string& to);

  const onnx::ModelProto& model() const { return model_; }
  const Registry& registry() const { return registry_; }
  GraphNames& names() { return names_; }
  GraphTypes& types() { return types_; }
  KnownValues& known() { return known_; }

  // Remembers a tensor sequence under `name`.
  Status hold(const std::string& name, std::vector<std::string> tensors);

  // Sequences and optionals by name; empty: an optional without an element.
  std::map<std::string, std::vector<std::string>> sequences;
  std::map<std::string, OpenSplit> open_splits;
  std::map<std::string, bool> optionals;  // true: it has an element, with the same name

 private:
  Status resolve(onnx::NodeProto& node);
  Status check_budgets() const;

  onnx::ModelProto& model_;
  const Registry& registry_;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes_;  // still to be processed
  GraphNames names_;
  KnownValues known_;
  GraphTypes types_;
  Reasons reasons_;
  // Graph size so far, including the file's nodes, and the size of all sequences.
  int64_t made_nodes_ = 0, made_bytes_ = 0, held_tensors_ = 0;
  int64_t file_nodes_ = 0, file_bytes_ = 0;
};

// Node resolvers: control flow, sequences, functions. They refuse a node that they cannot resolve.
// Errors: kInput for a wrong node.

// Control flow that depends only on KnownValues:
//
//   If          the branch that runs replaces it
//   Loop, Scan  unrolled; a Loop ends once the condition is false, which must be known in every
//               iteration
//
// Weights inside a branch came out of it before (importer/file/branch_weights.h). Weights inside a
// body become constants.
// https://onnx.ai/onnx/operators/onnx__If.html, https://onnx.ai/onnx/operators/onnx__Loop.html,
// https://onnx.ai/onnx/operators/onnx__Scan.html
Status resolve_if(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_loop(GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_scan(GraphRewriter& rewriter, const onnx::NodeProto& node);

// Sequences and optional values, which exporters leave around tensors. A sequence is a list of
// names, and an index in it must be known. SplitToSequence becomes a Split if the piece sizes are
// known, else an OpenSplit with Slices as pieces.
//
// Resolves SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase, SequenceAt,
// SequenceLength, SequenceMap, SplitToSequence, ConcatFromSequence, Optional, OptionalHasElement,
// OptionalGetElement, and Identity of either.
//
// Errors: kInput for an axis or an index that does not exist.
// https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html
bool is_sequence_node(const GraphRewriter& rewriter, const onnx::NodeProto& node);
Status resolve_sequences(GraphRewriter& rewriter, const onnx::NodeProto& node);

// Returns the body if ONNX defines the operator as a function and it has no kernel here. Converts a
// body from an older opset if an operator in it has changed since. Returns nothing if the operator
// is not a function, or if the body is unavailable (unknown input types). Catches the ONNX
// library's exceptions.
std::optional<std::vector<onnx::NodeProto>> function_body(GraphRewriter& rewriter,
                                                          const onnx::NodeProto& node);

// Checks that the model's own functions end, and that inlining them stays within the budgets.
// Errors: kInput.
Status check_local_functions(const onnx::ModelProto& model);

// Replaces calls of the model's own functions by their bodies, which get the attributes of the call
// or else the defaults of the function. Errors: kInput.
Status inline_local_functions(onnx::ModelProto& model);

// A model file ready to be read node by node: checked and converted to kOpset, with functions
// inlined and control flow resolved. It computes in float32 even if weights have other types, and
// the operators have the registry's domains.
//
// Errors: kInput naming the file. Catches the ONNX library's exceptions.

struct NormalizedModel {
  onnx::ModelProto proto;
  std::vector<std::string> initializers;  // names before any conversion
  ModuleScopes scopes;
  Reasons reasons;  // for operators that could not be resolved
};

// `forward`: a serialized model that replaces the file's skeleton; empty: the skeleton. Initializer
// names and scopes always come from the skeleton.
Result<NormalizedModel> normalized_model(const OnnxFile& file, const Operators& operators,
                                         const std::string& forward = "");

}  // namespace ofsdp::importer
