// Rewriter: what a fusion rule sees: the nodes so far, who makes a value, how often it is read; and
// what it may do: emit nodes, the last of which takes over the outputs of the node it replaces.
//
// Ownership: borrows the graph under construction. Threads: one.
#pragma once

#include <map>
#include <optional>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

class Rewriter {
 public:
  Rewriter(const Graph& source, const std::vector<ValueId>& wanted);

  const Graph& graph() const { return graph_; }
  const TensorDesc& desc(ValueId id) const { return graph_.value(id).desc; }
  const Shape& shape(ValueId id) const { return desc(id).shape; }

  // The node that makes the value when it is `op`, else null. Valid until the next emit.
  const Node* made_by(ValueId id, const char* op) const;
  const Node* maker(ValueId id) const;  // any node, any of its outputs
  // The place of its maker among the nodes so far; -1: no node makes it.
  int order(ValueId id) const { return maker_[static_cast<size_t>(id)]; }
  // Whether the value depends on a trained parameter.
  bool trained(ValueId id) const { return trained_[static_cast<size_t>(id)]; }
  int reads(ValueId id) const { return reads_[static_cast<size_t>(id)]; }
  bool read_once(ValueId id) const { return reads(id) == 1; }
  // The number that a constant of one element holds.
  std::optional<double> scalar(ValueId id) const;
  bool is_scalar(ValueId id, double value) const;  // to a relative 1e-4: exporters round

  ValueId emit(const std::string& op, const std::string& name, const std::vector<ValueId>& inputs,
               const Attributes& attributes = {});
  ValueId ints(const std::vector<int64_t>& values);
  // A place for what a rule makes once and uses at several nodes; 0 at first.
  ValueId& remembered(const std::string& key) { return remembered_[key]; }
  // The replacement of `node`: writes its first output and has its name, or `name` where another
  // node of the pattern tells more. False (nothing done) when it does not fit.
  bool replace(const Node& node, const std::string& op, const std::vector<ValueId>& inputs,
               const Attributes& attributes = {}, const std::string& name = {});
  void keep(const Node& node);

  Graph finish(const std::vector<ValueId>& wanted);
  void count(const char* rule) { ++graph_.fused[rule]; }

  size_t least_chain_bytes = 0;  // see FusionSettings

 private:
  void append(Node node);
  void grow();  // the tables per value, to as many as there are

  Graph graph_;
  GraphEditor editor_;
  std::vector<int> reads_;
  std::vector<int> maker_;  // per value: its node, or -1
  std::vector<bool> trained_;
  std::map<std::string, ValueId> remembered_;
};

// True when the rule has replaced the node.
struct FusionRule {
  const char* name;
  bool (*apply)(Rewriter&, const Node&);
};

bool fuse_linear(Rewriter& r, const Node& node);
bool fuse_bias(Rewriter& r, const Node& node);
bool fuse_gelu(Rewriter& r, const Node& node);
bool fuse_layer_norm(Rewriter& r, const Node& node);
bool fuse_rms_norm(Rewriter& r, const Node& node);
bool fuse_rotary(Rewriter& r, const Node& node);
bool fuse_attention(Rewriter& r, const Node& node);
bool fuse_causal_mask(Rewriter& r, const Node& node);
bool fuse_log_softmax_loss(Rewriter& r, const Node& node);
bool fuse_max_pool_relu(Rewriter& r, const Node& node);
bool fuse_chain(Rewriter& r, const Node& node);

}  // namespace ofsdp::importer
