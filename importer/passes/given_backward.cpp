#include <algorithm>
#include <map>
#include <set>

#include "importer/graph/graph_uses.h"
#include "importer/passes/passes.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

class Order {
 public:
  explicit Order(const Graph& source)
      : source_(source), graph_(source), forward_(source.nodes.size(), false) {
    graph_.nodes.clear();
  }

  Result<Graph> run() {
    find_forward();
    find_weight_only();
    for (size_t n = 0; n < source_.nodes.size(); ++n) {
      if (forward_[n] && !weight_only_[n]) place_forward(n);
    }
    for (size_t n = 0; n < source_.nodes.size(); ++n) {
      if (!forward_[n]) OFSDP_RETURN_IF_ERROR(place_backward(n));
    }
    OFSDP_RETURN_IF_ERROR(own_gradients());
    OFSDP_RETURN_IF_ERROR(drop_unread_outputs());
    return std::move(graph_);
  }

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }

  void find_forward() {
    std::vector<bool> needed(source_.values.size(), false);
    needed[at(source_.loss)] = true;
    for (const Carried& c : source_.carried) needed[at(c.next)] = true;
    for (size_t n = source_.nodes.size(); n-- > 0;) {
      const Node& node = source_.nodes[n];
      for (const ValueId id : node.outputs) {
        if (id != 0 && needed[at(id)]) forward_[n] = true;
      }
      if (!forward_[n]) continue;
      for (const ValueId id : node.inputs) needed[at(id)] = true;
    }
  }

  // Finds forward nodes whose inputs are weights and constants alone.
  void find_weight_only() {
    weight_only_.assign(source_.nodes.size(), false);
    for (size_t n = 0; n < source_.nodes.size(); ++n) {
      const Node& node = source_.nodes[n];
      const auto is_weight = [&](ValueId id) {
        return source_.value(id).kind == ValueKind::kParameter || made_of_weights(id);
      };
      const auto is_fixed = [&](ValueId id) {
        return id == 0 || source_.value(id).kind == ValueKind::kConstant || is_weight(id);
      };
      weight_only_[n] = forward_[n] && !node.op->random &&
                        std::ranges::all_of(node.inputs, is_fixed) &&
                        std::ranges::any_of(node.inputs, is_weight);
    }
  }

  bool made_of_weights(ValueId id) const {
    const int maker = uses_.maker(id);
    return maker >= 0 && weight_only_[static_cast<size_t>(maker)];
  }

  // After what it is made of. Chains of nodes may be as long as the file.
  void place_forward(size_t last) {
    if (!placed_.insert(last).second) return;
    std::vector<std::pair<size_t, size_t>> open{{last, 0}};  // nodes, and their next input
    while (!open.empty()) {
      const size_t n = open.back().first;
      const std::vector<ValueId>& inputs = source_.nodes[n].inputs;
      if (open.back().second == inputs.size()) {
        graph_.nodes.push_back(source_.nodes[n]);
        open.pop_back();
        continue;
      }
      const ValueId id = inputs[open.back().second++];
      if (!made_of_weights(id)) continue;
      const auto maker = static_cast<size_t>(uses_.maker(id));
      if (placed_.insert(maker).second) open.emplace_back(maker, 0);
    }
  }

  Status place_backward(size_t n) {
    Node node = source_.nodes[n];
    node.backward = true;
    for (ValueId& id : node.inputs) {
      OFSDP_ASSIGN_OR_RETURN(id, as_backward_reads(id));
    }
    if (node.op->full_name() == "Identity") {
      same_[node.outputs[0]] = node.inputs[0];
      return {};
    }
    return GraphEditor(graph_).place(std::move(node));
  }

  // Returns the value itself, the input of an Identity, or backward's own copy of a value made of
  // weights.
  Result<ValueId> as_backward_reads(ValueId id) {
    std::vector<ValueId> open{id};
    const auto waits = [&](ValueId v) { return !same_.contains(v) && made_of_weights(v); };
    while (!open.empty()) {
      const ValueId top = open.back();
      if (!waits(top)) {
        open.pop_back();
        continue;
      }
      const Node& node = source_.nodes[static_cast<size_t>(uses_.maker(top))];
      const size_t before = open.size();
      for (size_t i = node.inputs.size(); i-- > 0;) {
        if (waits(node.inputs[i])) open.push_back(node.inputs[i]);
      }
      if (open.size() == before) OFSDP_RETURN_IF_ERROR(clone_backward(node));
    }
    const auto other = same_.find(id);
    return other == same_.end() ? id : other->second;
  }

  Status clone_backward(Node clone) {
    clone.backward = true;
    for (ValueId& input : clone.inputs) {
      if (const auto other = same_.find(input); other != same_.end()) input = other->second;
    }
    for (ValueId& output : clone.outputs) {
      if (output == 0) continue;
      same_[output] = GraphEditor(graph_).add_value(source_.value(output));
      output = same_[output];
    }
    return GraphEditor(graph_).place(std::move(clone));
  }

  Status own_gradients() {
    std::vector<int> reads(graph_.values.size(), 0);
    std::vector<bool> written(graph_.values.size(), false);
    for (const Node& node : graph_.nodes) {
      for (const ValueId id : node.inputs) ++reads[at(id)];
      for (const ValueId id : node.outputs) {
        if (id != 0) written[at(id)] = node.backward && !node.op->view;
      }
    }
    std::set<ValueId> taken;
    for (Parameter& p : graph_.parameters) {
      if (p.gradient == 0) continue;
      const auto same = same_.find(p.gradient);
      if (same != same_.end()) p.gradient = same->second;
      const TensorDesc& found = graph_.value(p.gradient).desc;
      const TensorDesc& expected = graph_.value(p.value).desc;
      OFSDP_REJECT_IF(!(found.shape == expected.shape) || found.dtype != expected.dtype,
                      "{}: the gradient '{}' of '{}': expected {}, found {}", graph_.file,
                      graph_.value(p.gradient).name, p.name, expected.text(), found.text());
      const bool own = written[at(p.gradient)] && reads[at(p.gradient)] == 0;
      if (own && taken.insert(p.gradient).second) continue;
      OFSDP_ASSIGN_OR_RETURN(
          const auto made,
          GraphEditor(graph_).add("ofsdp.Copy", "grad." + p.name, {p.gradient}, {}, 1, true));
      p.gradient = made[0];
    }
    return ok_status();
  }

  // Drops outputs that only replaced gradient operators read: indices of MaxPool.
  Status drop_unread_outputs() {
    const std::vector<ValueId> wanted = trained_values(graph_);
    std::set<ValueId> read(wanted.begin(), wanted.end());
    for (const Node& node : graph_.nodes) read.insert(node.inputs.begin(), node.inputs.end());
    for (Node& node : graph_.nodes) {
      Node made = node;
      for (size_t i = 1; i < made.outputs.size(); ++i) {
        if (!read.contains(made.outputs[i])) made.outputs[i] = 0;
      }
      if (made.outputs == node.outputs) continue;
      OFSDP_RETURN_IF_ERROR(GraphEditor(graph_).change(node, std::move(made)));
    }
    prune(graph_, trained_values(graph_));
    return {};
  }

  const Graph& source_;
  Graph graph_;
  std::vector<bool> forward_;      // per node
  std::vector<bool> weight_only_;  // per node
  const GraphUses uses_{source_};
  std::set<size_t> placed_;
  std::map<ValueId, ValueId> same_;  // what backward reads instead
};

}  // namespace

Result<Graph> order_backward(const Graph& graph) { return Order(graph).run(); }

Graph without_backward(const Graph& graph) {
  Graph result = graph;
  result.loss_weight = 0;
  for (Parameter& p : result.parameters) p.gradient = 0;
  prune(result, result.outputs);
  return result;
}

}  // namespace ofsdp::importer
