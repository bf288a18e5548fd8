// fuse rewrites a specialized graph into operators that compute the same with fewer passes over
// memory. Exporters take apart layers that the author wrote in one piece; fuse joins them again.
//
// A FusionRule looks at one node, the last in the pattern, and replaces it. Nodes that nothing
// needs afterwards are dropped; values with other readers stay. Tests switch rules off by name and
// compare both ways.
//
// `wanted` are the values that must stay: loss, next buffer values, outputs. Graph::fused counts
// the rewrites, for the printed plan. A pattern that does not fit is left alone.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "importer/graph/graph.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

struct FusionSettings {
  std::set<std::string> switched_off;
  // The minimum tensor size in an elementwise chain. Smaller ones stay in the cache between two
  // operators; their simple loops are then as fast (docs/internals/operators.md).
  size_t least_chain_bytes = size_t{8} << 20;
};

Graph fuse(const Graph& graph, const std::vector<ValueId>& wanted,
           const FusionSettings& settings = {});

std::vector<std::string> fusion_names();

// A fusion rule's access to the graph under construction: it asks for the nodes so far, a value's
// maker and readers, and emits nodes. The last emitted node takes over the replaced node's outputs.

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

  // Returns the node that makes the value if the operator is `op`, else null. Valid until the next
  // emit.
  const Node* made_by(ValueId id, const char* op) const {
    const Node* node = maker(id);
    const bool fits = node != nullptr && node->op->full_name() == op && node->outputs[0] == id;
    return fits ? node : nullptr;
  }

  // Returns the node with the value as an output; null: none.
  const Node* maker(ValueId id) const {
    const int n = maker_[static_cast<size_t>(id)];
    return n < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(n)];
  }

  // Returns the maker's index among the nodes so far; -1: no node makes it.
  int order(ValueId id) const { return maker_[static_cast<size_t>(id)]; }
  // Returns whether the value depends on a trained parameter.
  bool trained(ValueId id) const { return trained_[static_cast<size_t>(id)]; }
  int reads(ValueId id) const { return reads_[static_cast<size_t>(id)]; }
  bool read_once(ValueId id) const { return reads(id) == 1; }
  // Returns an operator's two inputs in both orders.
  static std::array<std::pair<ValueId, ValueId>, 2> both_orders(const Node& node) {
    return {{{node.inputs[0], node.inputs[1]}, {node.inputs[1], node.inputs[0]}}};
  }
  // Returns the number in a one-element constant.
  std::optional<double> scalar(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kConstant || value.desc.numel() != 1) return std::nullopt;
    return to_doubles(value.desc, value.constant->bytes.data())[0];
  }

  // Compares to a relative 1e-4, because exporters round.
  bool is_scalar(ValueId id, double expected) const {
    const auto found = scalar(id);
    return found && std::abs(*found - expected) <= 1e-4 * std::abs(expected);
  }

  ValueId emit(const std::string& op, const std::string& name, const std::vector<ValueId>& inputs,
               const Attributes& attributes = {}) {
    auto made = editor_.add1(op, name, inputs, attributes);
    if (!made.ok()) {  // a file with the pattern in shapes that no exporter writes
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

  // Returns a variable, at first 0, for a value that a rule makes once for several nodes.
  ValueId& remembered(const std::string& key) { return remembered_[key]; }
  // Replaces `node`: the new node makes the first output and has its name, or `name` if another
  // node in the pattern has a better one. Returns false, with nothing changed, if it does not fit.
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

  // Resizes the tables to the value count.
  void grow() {
    reads_.resize(graph_.values.size(), 0);
    maker_.resize(graph_.values.size(), -1);
    trained_.resize(graph_.values.size(), false);
  }

  Graph graph_;
  GraphEditor editor_;
  std::vector<int> reads_;
  std::vector<int> maker_;  // per value: the node that makes it, or -1
  std::vector<bool> trained_;
  std::map<std::string, ValueId> remembered_;
  bool failed_ = false;  // the rule emitted a node that does not fit
};

struct FusionRule {
  const char* name;
  const char* last;  // operator at the pattern's end; "": several
  const char* into;  // the resulting operator; without it the rule does not exist
  bool (*apply)(Rewriter&, const Node&);  // returns true if it replaced the node
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
bool fuse_mask_band(Rewriter& r, const Node& node);
bool fuse_attention_operands(Rewriter& r, const Node& node);
bool fuse_attention_result(Rewriter& r, const Node& node);
bool fuse_log_softmax_loss(Rewriter& r, const Node& node);
bool fuse_max_pool_relu(Rewriter& r, const Node& node);
bool fuse_chain(Rewriter& r, const Node& node);

// StridedView: where a value's elements lie in a tensor from which nodes made it by moving or
// renaming elements only (Transpose, Split, Reshape and the like). The value's element (i, j, ...)
// is the tensor's element first + i steps[0] + j steps[1] + ... Some values have no steps: after a
// Transpose and a Reshape, in general.

struct StridedView {
  int64_t first = 0;
  std::vector<int64_t> sizes, steps;

  // Views a whole tensor.
  static StridedView of(const kernels::Shape& shape) {
    StridedView made{0, shape.axes(), std::vector<int64_t>(shape.axes().size(), 1)};
    for (size_t i = made.steps.size(); i-- > 1;) {
      made.steps[i - 1] = made.steps[i] * made.sizes[i];
    }
    return made;
  }

  // REQUIRES: `perm` permutes the axes.
  StridedView permuted(const std::vector<int64_t>& perm) const {
    StridedView made{first, {}, {}};
    for (const int64_t axis : perm) {
      made.sizes.push_back(sizes[static_cast<size_t>(axis)]);
      made.steps.push_back(steps[static_cast<size_t>(axis)]);
    }
    return made;
  }

  // Views elements begin .. begin + size along an axis.
  StridedView part(size_t axis, int64_t begin, int64_t size) const {
    StridedView made = *this;
    made.first += begin * steps[axis];
    made.sizes[axis] = size;
    return made;
  }

  // Views the same elements in another shape; nothing if no steps describe it.
  std::optional<StridedView> reshaped(const kernels::Shape& shape) const {
    const StridedView from = without_ones();
    StridedView made = of(shape);
    made.first = first;
    const std::vector<int64_t>& to = made.sizes;
    if (shape.numel() == 0) return std::nullopt;
    for (size_t i = 0, j = 0; i < from.sizes.size();) {  // axis runs with equal element counts
      int64_t here = from.sizes[i], there = to[j];
      size_t i_end = i + 1, j_end = j + 1;
      while (here != there) {
        if (there < here) {
          there *= to[j_end++];
        } else if (from.steps[i_end - 1] != from.steps[i_end] * from.sizes[i_end]) {
          return std::nullopt;
        } else {
          here *= from.sizes[i_end++];
        }
      }
      int64_t step = from.steps[i_end - 1];
      for (size_t k = j_end; k-- > j;) {
        made.steps[k] = step;
        step *= to[k];
      }
      i = i_end;
      j = j_end;
    }
    return made;
  }

 private:
  StridedView without_ones() const {
    StridedView made{first, {}, {}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 1) continue;
      made.sizes.push_back(sizes[i]);
      made.steps.push_back(steps[i]);
    }
    return made;
  }
};

}  // namespace ofsdp::importer
