// rewrite_graph: resolves everything in an ONNX graph that is no operator on tensors, before the
// graph becomes a Graph:
//
//   If                     the branch that runs, when its condition is known
//   Loop, Scan             unrolled, when the number of iterations is known
//   sequences, optionals   the tensors in them
//   functions of ONNX      the body of an operator without a kernel here
//
// resolvers.h has one function for each.
//
// Works on the model in the newest opset, node by node in their order. New nodes are resolved in
// turn. A node that cannot be resolved stays as it is; `reasons` says why, by operator.
//
// The registry must outlive the call. Threads: one at a time. Errors: kInput for a wrong node (a
// position outside of a sequence).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "importer/normalize/known_values.h"
#include "importer/proto/graph_names.h"
#include "importer/proto/graph_types.h"
#include "importer/proto/onnx_protos.h"

namespace ofsdp::importer {

using Reasons = std::map<std::string, std::string>;  // operator as messages name it -> why

Result<Reasons> rewrite_graph(onnx::ModelProto& model, const Registry& registry);

using IntAttributes = std::map<std::string, int64_t>;

// A tensor cut along an axis of unknown size into pieces of `size`: a sequence of unknown length.
struct OpenSplit {
  std::string tensor;
  int64_t axis = 0;
  int64_t size = 1;
  bool squeezed = false;  // pieces of size 1 without their axis
};

class GraphRewriter {
 public:
  GraphRewriter(onnx::ModelProto& model, const Registry& registry);
  Result<Reasons> run();

  // For those who resolve. `process` resolves the node or keeps it.
  Status process(onnx::NodeProto node);
  void keep(onnx::NodeProto node) {
    ++made_nodes_;
    made_bytes_ += static_cast<int64_t>(node.ByteSizeLong());
    *model_.mutable_graph()->add_node() = std::move(node);
  }
  Status refuse(onnx::NodeProto node, const std::string& why);
  Status add(const std::string& op, const std::vector<std::string>& inputs,
             const std::vector<std::string>& outputs, const IntAttributes& attributes = {});
  // `to` is another name of `from`: a tensor, sequence or optional.
  Status alias(const std::string& from, const std::string& to);
  void constant(const std::string& name, const onnx::TensorProto& tensor);
  // A constant of rank 0; `type` is INT64 or BOOL of TensorProto.
  void scalar(const std::string& name, int type, int64_t value);
  // An int64 constant of a fresh name, of one axis.
  std::string ints(const std::vector<int64_t>& values);

  // Processes the nodes of `body`, whose inputs are `inputs`; its outputs by their outer names.
  Result<std::vector<std::string>> process_body(onnx::GraphProto body,
                                                const std::vector<std::string>& inputs);
  // The pieces of `count` along `axis`, which goes away; and their way back.
  Result<std::vector<std::string>> unstack(const std::string& name, int64_t axis, int64_t count);
  Status stack(const std::vector<std::string>& pieces, int64_t axis, const std::string& to);

  const onnx::ModelProto& model() const { return model_; }
  const Registry& registry() const { return registry_; }
  GraphNames& names() { return names_; }
  GraphTypes& types() { return types_; }
  KnownValues& known() { return known_; }

  // Remembers a sequence of tensors under `name`.
  Status hold(const std::string& name, std::vector<std::string> tensors);

  // Sequences and optionals by name; none: an optional without an element.
  std::map<std::string, std::vector<std::string>> sequences;
  std::map<std::string, OpenSplit> open_splits;
  std::map<std::string, bool> optionals;  // whether there is an element, which has the same name

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
  // The graph so far, the file's own nodes included, and all sequences.
  int64_t made_nodes_ = 0, made_bytes_ = 0, held_tensors_ = 0;
  int64_t file_nodes_ = 0, file_bytes_ = 0;
};

}  // namespace ofsdp::importer
