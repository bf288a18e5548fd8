// Rules that raise an ai.onnx node to the next opset if ONNX's version converter has no adapter, or
// one that loses the meaning: broadcasting by an axis, Hardmax's coercion to two axes, Resize's
// coordinates. Each follows the standard's text for the older version.
//
// Errors: kInput, expected and found; the caller names the node and the opset.
#pragma once

#include <onnx/common/ir.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "importer/normalize/onnx_import.h"

namespace ofsdp::importer {

// A node in ONNX's intermediate form while a rule raises it to the next opset, and the nodes that
// the rule puts around it. The graph owns all nodes. Errors: kInput, expected and found.

class OldNode {
 public:
  OldNode(std::shared_ptr<onnx::Graph> graph, onnx::Node* node, const FloatsOf& floats_of)
      : graph_(std::move(graph)), node_(node), last_(node), floats_of_(floats_of) {}

  const std::shared_ptr<onnx::Graph>& graph() const { return graph_; }
  onnx::Node* node() const { return node_; }
  onnx::Node* last() const { return last_; }  // the last node that replaces it

  bool has(const char* attribute) const { return node_->hasAttribute(onnx::Symbol(attribute)); }
  int64_t i(const char* attribute, int64_t otherwise) const;
  std::string s(const char* attribute, const char* otherwise) const;
  // Removes the attribute if it exists.
  void drop(const char* attribute);

  bool reads(size_t input) const;
  // Returns whether something reads that output.
  bool gives(size_t output) const;
  // Returns an input's rank. REQUIRES: the rule is marked `by_rank`.
  Result<int64_t> rank(size_t input) const;
  // Returns an input's elements, in any type, if it is a constant or a small initializer.
  std::optional<std::vector<double>> numbers(size_t input) const;

  // Inserts a node before this one and returns the output.
  onnx::Value* before(const char* op, const std::vector<onnx::Value*>& inputs);
  onnx::Value* ints(std::vector<int64_t> values, bool scalar = false);
  onnx::Value* floats(std::vector<float> values, bool scalar = false);
  onnx::Value* truth(bool value);
  onnx::Value* none();  // an omitted input
  void set_inputs(const std::vector<onnx::Value*>& inputs);
  // Replaces this node by `made`, which stands before it.
  void replace_by(onnx::Node* made);
  // Adds a node that reads an output here and takes over that output's readers.
  onnx::Node* follow(size_t output, const char* op, const std::vector<onnx::Value*>& more = {});

 private:
  onnx::Value* constant(const onnx::Tensor& tensor);
  void take_over(onnx::Value* old, onnx::Value* made);

  std::shared_ptr<onnx::Graph> graph_;
  onnx::Node* node_;
  onnx::Node* last_;
  const FloatsOf& floats_of_;
};

// Rules that need ranks all have this opset: schemas before it infer few shapes.
inline constexpr int kRankedOpset = 6;

struct OpsetRule {
  const char* op;
  int from;  // the node's opset before the rule; afterwards the next
  Status (*apply)(OldNode&);
  bool by_rank = false;
};

// Returns null if there is none.
const OpsetRule* find_opset_rule(const std::string& op, int from);

// Returns whether such a node in opset `from` meets a rule that needs ranks.
bool rank_matters(const std::string& op, int from);

}  // namespace ofsdp::importer
