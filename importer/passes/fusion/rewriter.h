// Rewriter: what a fusion rule sees: the nodes so far, who makes a value, how often it is read; and
// what it may do: emit nodes, the last of which takes over the outputs of the node it replaces.
//
// Ownership: borrows the graph under construction. Threads: one.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "importer/graph/graph.h"
#include "importer/graph/graph_uses.h"

namespace ofsdp::importer {

class Rewriter {
 public:
  Rewriter(const Graph& source, const std::vector<ValueId>& wanted)
      : graph_(source), editor_(graph_) {
    graph_.nodes.clear();
    grow();
    for (const Parameter& p : source.parameters) trained_[static_cast<size_t>(p.value)] = p.trained;
    for (const Node& node : source.nodes) {
      for (ValueId id : node.inputs) ++reads_[static_cast<size_t>(id)];
    }
    for (ValueId id : wanted) ++reads_[static_cast<size_t>(id)];
  }

  const Graph& graph() const { return graph_; }
  const TensorDesc& desc(ValueId id) const { return graph_.value(id).desc; }
  const Shape& shape(ValueId id) const { return desc(id).shape; }

  // The node that makes the value when it is `op`, else null. Valid until the next emit.
  const Node* made_by(ValueId id, const char* op) const {
    const Node* node = maker(id);
    const bool fits = node != nullptr && node->op->full_name() == op && node->outputs[0] == id;
    return fits ? node : nullptr;
  }

  // Returns any node that makes the value, as any of its outputs; null: none.
  const Node* maker(ValueId id) const {
    const int n = maker_[static_cast<size_t>(id)];
    return n < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(n)];
  }

  // The place of its maker among the nodes so far; -1: no node makes it.
  int order(ValueId id) const { return maker_[static_cast<size_t>(id)]; }
  // Whether the value depends on a trained parameter.
  bool trained(ValueId id) const { return trained_[static_cast<size_t>(id)]; }
  int reads(ValueId id) const { return reads_[static_cast<size_t>(id)]; }
  bool read_once(ValueId id) const { return reads(id) == 1; }
  // The inputs of an operator of two, in both orders.
  static std::array<std::pair<ValueId, ValueId>, 2> both_orders(const Node& node) {
    return {{{node.inputs[0], node.inputs[1]}, {node.inputs[1], node.inputs[0]}}};
  }
  // The number that a constant of one element holds.
  std::optional<double> scalar(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kConstant || value.desc.numel() != 1) return std::nullopt;
    return to_doubles(value.desc, value.constant->bytes.data())[0];
  }

  // Compares to a relative 1e-4: exporters round.
  bool is_scalar(ValueId id, double expected) const {
    const auto found = scalar(id);
    return found && std::abs(*found - expected) <= 1e-4 * std::abs(expected);
  }

  ValueId emit(const std::string& op, const std::string& name, const std::vector<ValueId>& inputs,
               const Attributes& attributes = {}) {
    auto made = editor_.add1(op, name, inputs, attributes);
    if (!made.ok()) {  // a file with a pattern whose shapes no exporter writes
      failed_ = true;
      return inputs[0];
    }
    Node node = std::move(graph_.nodes.back());
    graph_.nodes.pop_back();
    append(std::move(node));
    for (ValueId id : inputs) ++reads_[static_cast<size_t>(id)];
    reads_[static_cast<size_t>(*made)] = 1;
    return *made;
  }

  ValueId ints(const std::vector<int64_t>& values) {
    const ValueId id = add_ints(graph_, "ints", values);
    grow();
    return id;
  }

  // A place for what a rule makes once and uses at several nodes; 0 at first.
  ValueId& remembered(const std::string& key) { return remembered_[key]; }
  // The replacement of `node`: writes its first output and has its name, or `name` where another
  // node of the pattern tells more. False (nothing done) when it does not fit.
  bool replace(const Node& node, const std::string& op, const std::vector<ValueId>& inputs,
               const Attributes& attributes = {}, const std::string& name = {}) {
    if (std::exchange(failed_, false)) {
      remembered_.clear();
      return false;
    }
    const OpDef& into = graph_.registry->get(op);
    Node made{&into, name.empty() ? node.name : name, attributes, inputs, {node.outputs[0]}};
    if (!check_outputs(graph_, made).ok()) return false;
    append(std::move(made));
    return true;
  }

  void keep(const Node& node) { append(node); }

  Graph finish(const std::vector<ValueId>& wanted) {
    prune(graph_, wanted);
    return std::move(graph_);
  }

  void count(const char* rule) { ++graph_.fused[rule]; }

  size_t least_chain_bytes = 0;  // see FusionSettings

 private:
  void append(Node node) {
    grow();
    const bool learns = std::ranges::any_of(node.inputs, [&](ValueId id) { return trained(id); });
    for (ValueId id : node.outputs) {
      if (id == 0) continue;
      maker_[static_cast<size_t>(id)] = static_cast<int>(graph_.nodes.size());
      trained_[static_cast<size_t>(id)] = learns;
    }
    graph_.nodes.push_back(std::move(node));
  }

  // Makes the tables as long as there are values.
  void grow() {
    reads_.resize(graph_.values.size(), 0);
    maker_.resize(graph_.values.size(), -1);
    trained_.resize(graph_.values.size(), false);
  }

  Graph graph_;
  GraphEditor editor_;
  std::vector<int> reads_;
  std::vector<int> maker_;  // per value: its node, or -1
  std::vector<bool> trained_;
  std::map<std::string, ValueId> remembered_;
  bool failed_ = false;  // a node that the rule has emitted; it does not fit
};

struct FusionRule {
  const char* name;
  const char* last;  // the operator that a pattern ends with; "": any of several
  const char* into;  // what it becomes; without this operator there is no rule
  bool (*apply)(Rewriter&, const Node&);  // true: the node is replaced
};

bool fuse_linear(Rewriter& r, const Node& node);
bool fuse_bias(Rewriter& r, const Node& node);
bool fuse_bias_gelu(Rewriter& r, const Node& node);
bool fuse_gelu(Rewriter& r, const Node& node);
bool fuse_layer_norm(Rewriter& r, const Node& node);
bool fuse_rms_norm(Rewriter& r, const Node& node);
bool fuse_rotary(Rewriter& r, const Node& node);
bool fuse_attention(Rewriter& r, const Node& node);
bool fuse_causal_mask(Rewriter& r, const Node& node);
bool fuse_attention_operands(Rewriter& r, const Node& node);
bool fuse_attention_result(Rewriter& r, const Node& node);
bool fuse_log_softmax_loss(Rewriter& r, const Node& node);
bool fuse_max_pool_relu(Rewriter& r, const Node& node);
bool fuse_chain(Rewriter& r, const Node& node);

}  // namespace ofsdp::importer
