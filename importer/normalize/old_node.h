// OldNode: a node of ONNX's intermediate form while a rule of opset_rules.h takes it to the next
// opset, and the nodes that the rule puts around it.
//
// Ownership: the graph owns all nodes. Threads: one. Errors: kInput, expected and found.
#pragma once

#include <onnx/common/ir.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "importer/normalize/opset_range.h"

namespace ofsdp::importer {

class OldNode {
 public:
  OldNode(std::shared_ptr<onnx::Graph> graph, onnx::Node* node, const FloatsOf& floats_of)
      : graph_(std::move(graph)), node_(node), last_(node), floats_of_(floats_of) {}

  const std::shared_ptr<onnx::Graph>& graph() const { return graph_; }
  onnx::Node* node() const { return node_; }
  onnx::Node* last() const { return last_; }  // the last of the nodes in its place

  bool has(const char* attribute) const { return node_->hasAttribute(onnx::Symbol(attribute)); }
  int64_t i(const char* attribute, int64_t otherwise) const;
  std::string s(const char* attribute, const char* otherwise) const;
  // Removes the attribute if it is there.
  void drop(const char* attribute);

  bool reads(size_t input) const;
  // Returns whether something reads that output.
  bool gives(size_t output) const;
  // Returns the number of axes of an input. REQUIRES: the rule is marked `by_rank`.
  Result<int64_t> rank(size_t input) const;
  // Returns the elements of an input that is a constant, or a small initializer of any type.
  std::optional<std::vector<double>> numbers(size_t input) const;

  // Puts a node in front of this one and returns its output.
  onnx::Value* before(const char* op, const std::vector<onnx::Value*>& inputs);
  onnx::Value* ints(std::vector<int64_t> values, bool scalar = false);
  onnx::Value* floats(std::vector<float> values, bool scalar = false);
  onnx::Value* truth(bool value);
  onnx::Value* none();  // an input that is left out
  void set_inputs(const std::vector<onnx::Value*>& inputs);
  // `made`, which stands in front of this node, takes its place.
  void replace_by(onnx::Node* made);
  // Adds a node that reads an output of this one; its own output takes the place of that.
  onnx::Node* follow(size_t output, const char* op, const std::vector<onnx::Value*>& more = {});

 private:
  onnx::Value* constant(const onnx::Tensor& tensor);
  void take_over(onnx::Value* old, onnx::Value* made);

  std::shared_ptr<onnx::Graph> graph_;
  onnx::Node* node_;
  onnx::Node* last_;
  const FloatsOf& floats_of_;
};

}  // namespace ofsdp::importer
