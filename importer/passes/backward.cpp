#include <algorithm>
#include <map>
#include <set>

#include "importer/graph/graph.h"
#include "importer/passes/passes.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// Values that depend on a trained parameter, and nodes among them on the way to the loss.
struct LossPath {
  std::vector<bool> needs;  // per value: it needs a gradient; values made later need none
  std::vector<bool> nodes;  // per node: on the path

  bool needs_grad(ValueId id) const {
    return static_cast<size_t>(id) < needs.size() && needs[static_cast<size_t>(id)];
  }
};

LossPath find_loss_path(const Graph& graph) {
  LossPath path;
  path.needs.assign(graph.values.size(), false);
  for (const Parameter& p : graph.parameters) path.needs[static_cast<size_t>(p.value)] = p.trained;
  for (const Node& node : graph.nodes) {
    if (!std::ranges::any_of(node.inputs, [&](ValueId id) { return path.needs_grad(id); }))
      continue;
    for (ValueId id : node.outputs) {
      if (id != 0 && is_floating(graph.value(id).desc.dtype))
        path.needs[static_cast<size_t>(id)] = true;
    }
  }
  std::vector<bool> leads(graph.values.size(), false);
  for (const LossTerm& term : graph.terms) leads[static_cast<size_t>(term.value)] = true;
  path.nodes.assign(graph.nodes.size(), false);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    path.nodes[i] = std::ranges::any_of(node.outputs, [&](ValueId id) {
      return id != 0 && leads[static_cast<size_t>(id)] && path.needs_grad(id);
    });
    if (!path.nodes[i]) continue;
    for (ValueId id : node.inputs) leads[static_cast<size_t>(id)] = path.needs_grad(id);
  }
  return path;
}

Status check_differentiable(const Graph& graph, const LossPath& path) {
  std::map<std::string, std::vector<std::string>> missing;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (path.nodes[i] && node.op->grad == nullptr)
      missing[node.op->full_name()].push_back(node.name);
  }
  if (missing.empty()) return {};
  std::string list;
  for (const auto& [op, nodes] : missing) {
    list += format_text("{}{} ({})", list.empty() ? "" : "; ", op, joined(nodes, ", "));
  }
  return input_error("{}: operators without a gradient on the way to the loss: {}", graph.file,
                     list);
}

// The pass, and the GradBuilder for the node that it differentiates.
class Autodiff final : public GradBuilder {
 public:
  explicit Autodiff(const Graph& source) : graph_(source), editor_(graph_) {}

  Result<Graph> run() {
    path_ = find_loss_path(graph_);
    OFSDP_RETURN_IF_ERROR(check_differentiable(graph_, path_));
    seed();
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      if (!path_.nodes[i] || !reached(i)) continue;
      node_ = i;
      graph_.nodes[i].op->grad(*this);
      if (!status_.ok()) return std::move(status_);
    }
    return finish();
  }

  Attributes attributes() const override { return node().attributes; }
  size_t num_inputs() const override { return node().inputs.size(); }
  Ref input(size_t i) const override { return {i < num_inputs() ? node().inputs[i] : 0}; }
  Ref output(size_t i) override {
    Node asked = node();
    if (asked.outputs.size() <= i) asked.outputs.resize(i + 1, 0);
    if (asked.outputs[i] != 0) return {asked.outputs[i]};
    const std::string name = format_text("{}.{}", asked.name, i);
    const ValueId id = editor_.add_value({name, ValueKind::kActivation, {}});
    asked.outputs[i] = id;
    Status given = editor_.change_descs(graph_.nodes[node_], std::move(asked));
    if (!given.ok() && status_.ok()) status_ = std::move(given);
    return {id};
  }
  // Sums the gradients that have arrived so far.
  Ref grad_output(size_t i) const override {
    const bool there = i < node().outputs.size() && node().outputs[i] != 0;
    return {there ? const_cast<Autodiff*>(this)->total(node().outputs[i]) : 0};
  }
  bool needs_grad(size_t i) const override {
    return i < num_inputs() && node().inputs[i] != 0 && path_.needs_grad(node().inputs[i]);
  }
  TensorDesc desc(Ref ref) const override { return graph_.value(ref.id).desc; }
  ConstantPtr constant_value(Ref ref) const override { return graph_.value(ref.id).constant; }
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override {
    std::vector<ValueId> ids;
    for (const Ref ref : inputs) ids.push_back(ref.id);
    std::vector<Ref> refs;
    const std::string name = node().name + ".grad";
    for (const ValueId id : add(op, name, ids, attributes, num_outputs)) refs.push_back({id});
    return refs;
  }
  Ref constant(ConstantPtr value) override {
    return {editor_.add_constant(node().name + ".constant", std::move(value))};
  }
  void set_grad(size_t input, Ref grad) override {
    if (needs_grad(input) && grad) grads_[node().inputs[input]].push_back(grad.id);
  }
  void fail(Status status) override {
    if (status_.ok()) status_ = std::move(status).with_prefix(graph_.describe(node()));
  }

 private:
  const Node& node() const { return graph_.nodes[node_]; }

  // Returns whether a gradient arrives at any node output.
  bool reached(size_t i) const {
    return std::ranges::any_of(graph_.nodes[i].outputs,
                               [&](ValueId id) { return id != 0 && grads_.contains(id); });
  }

  void seed() {
    for (LossTerm& term : graph_.terms) term.weight = seed(term.value);
  }

  // Returns the loss weight, where the gradient starts.
  ValueId seed(ValueId loss) {
    const TensorDesc scalar{DType::kFloat32, {}};
    const ValueId weight = editor_.add_value({"loss_weight", ValueKind::kLossWeight, scalar});
    ValueId start = weight;
    if (graph_.value(loss).desc.shape.rank() != 0) {
      const auto& axes = graph_.value(loss).desc.shape.axes();
      start = add("Reshape", "grad", {start, add_ints(graph_, "axes", axes)})[0];
    }
    grads_[loss].push_back(start);
    return weight;
  }

  // Only a bug in a grad rule makes a node fail; the first failure ends the pass.
  std::vector<ValueId> add(const std::string& op, const std::string& name,
                           const std::vector<ValueId>& inputs, const Attributes& attributes = {},
                           size_t num_outputs = 1) {
    const std::string full = format_text("{}.{}", name, emitted_++);
    auto outputs = editor_.add(op, full, inputs, attributes, num_outputs, true);
    if (outputs.ok()) return *std::move(outputs);
    if (status_.ok()) status_ = std::move(outputs).status();
    std::vector<ValueId> dummies;
    for (size_t i = 0; i < num_outputs; ++i) {
      dummies.push_back(editor_.add_value({full, ValueKind::kActivation, {DType::kFloat32, {}}}));
    }
    return dummies;
  }

  // Returns a value's gradient, summed over the uses so far, or 0.
  ValueId total(ValueId id) {
    const auto it = grads_.find(id);
    if (it == grads_.end() || it->second.empty()) return 0;
    auto& parts = it->second;
    while (parts.size() > 1) {
      parts[0] = sum(id, parts[0], parts[1]);
      parts.erase(parts.begin() + 1);
    }
    return parts[0];
  }

  ValueId sum(ValueId id, ValueId a, ValueId b) {
    Node* lookup = graph_.value(id).kind == ValueKind::kParameter ? lookup_after(a, b) : nullptr;
    if (lookup == nullptr) return add("Add", "grad." + graph_.value(id).name, {a, b})[0];
    Node adding = *lookup;
    adding.inputs.push_back(a);
    Status changed = editor_.change(*lookup, std::move(adding));
    if (!changed.ok() && status_.ok()) status_ = std::move(changed);
    return b;
  }

  // Returns the GatherGrad that made `b` if it comes after the node that made `a`. It can then add
  // the few rows to `a` (a tied embedding) instead of making a second gradient for every row.
  Node* lookup_after(ValueId a, ValueId b) {
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      Node& node = graph_.nodes[i];
      if (std::ranges::find(node.outputs, a) != node.outputs.end()) return nullptr;
      if (node.outputs[0] != b) continue;
      const bool lookup = node.op->full_name() == "ofsdp.GatherGrad" && node.inputs.size() == 2;
      return lookup && graph_.value(a).desc == graph_.value(b).desc ? &node : nullptr;
    }
    return nullptr;
  }

  Result<Graph> finish() {
    std::map<ValueId, int> owners;
    for (Parameter& p : graph_.parameters) {
      if (!p.trained) continue;
      ValueId gradient = total(p.value);
      if (gradient != 0) gradient = own_gradient(p, gradient, owners);
      p.gradient = gradient;
    }
    if (!status_.ok()) return std::move(status_);
    place_copies();
    prune(graph_, trained_values(graph_));
    return std::move(graph_);
  }

  // Each parameter asks about all nodes, so each node is indexed once.
  void index_new_nodes() {
    made_.resize(graph_.values.size(), false);
    used_.resize(graph_.values.size(), false);
    for (; indexed_ < graph_.nodes.size(); ++indexed_) {
      const Node& node = graph_.nodes[indexed_];
      for (ValueId id : node.inputs) used_[static_cast<size_t>(id)] = true;
      for (ValueId id : node.outputs) made_[static_cast<size_t>(id)] = !node.op->view;
    }
  }

  // Returns a value that a separate node writes: a copy if the gradient is a view, an input, or
  // another parameter's gradient.
  ValueId own_gradient(const Parameter& p, ValueId gradient, std::map<ValueId, int>& owners) {
    index_new_nodes();
    const auto g = static_cast<size_t>(gradient);
    const bool fresh = made_[g] && !used_[g];
    if (fresh && owners.try_emplace(gradient, 1).second) return gradient;
    copies_.push_back(add("ofsdp.Copy", "grad." + p.name, {gradient})[0]);
    return copies_.back();
  }

  // Moves each gradient copy next to the backward node that makes the gradient, because a unit is
  // reduced after the gradients' last reader.
  void place_copies() {
    if (copies_.empty()) return;
    std::vector<Node>& nodes = graph_.nodes;
    std::vector<size_t> maker(graph_.values.size()), place(nodes.size()), order(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      place[i] = order[i] = i;
      for (const ValueId id : nodes[i].outputs) maker[static_cast<size_t>(id)] = i;
    }
    for (const ValueId id : copies_) {
      const size_t copy = maker[static_cast<size_t>(id)];
      const size_t source = maker[static_cast<size_t>(nodes[copy].inputs[0])];
      if (nodes[source].backward) place[copy] = source;
    }
    std::ranges::stable_sort(order, {}, [&](size_t i) { return place[i]; });
    std::vector<Node> ordered;
    for (const size_t i : order) ordered.push_back(std::move(nodes[i]));
    nodes = std::move(ordered);
  }

  Graph graph_;
  GraphEditor editor_;
  LossPath path_;
  size_t node_ = 0;  // node with the running rule
  std::map<ValueId, std::vector<ValueId>> grads_;
  std::vector<bool> made_, used_;  // per value: made by a node that is no view; read by a node
  size_t indexed_ = 0;             // nodes indexed so far
  std::vector<ValueId> copies_;    // gradients that copy another
  Status status_;
  int emitted_ = 0;
};

}  // namespace

Result<Graph> autodiff(const Graph& graph) { return Autodiff(graph).run(); }

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
    for (const LossTerm& term : source_.terms) needed[at(term.value)] = true;
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

  // Finds forward nodes that read only weights and constants.
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

  // Places a node after the nodes that it needs. Uses no recursion: a chain may be as long as the
  // file.
  void place_forward(size_t last) {
    if (!placed_.insert(last).second) return;
    std::vector<std::pair<size_t, size_t>> open{{last, 0}};  // nodes, each with the next input
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

  // Returns the value that backward reads: the value itself, an Identity's input, or backward's
  // copy if it is made from weights.
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

  // Drops outputs that only replaced gradient operators read, such as MaxPool's indices.
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
  std::map<ValueId, ValueId> same_;  // values that backward reads instead
};

}  // namespace

Result<Graph> order_backward(const Graph& graph) { return Order(graph).run(); }

Graph without_backward(const Graph& graph) {
  Graph result = graph;
  for (LossTerm& term : result.terms) term.weight = 0;
  for (Parameter& p : result.parameters) p.gradient = 0;
  prune(result, result.outputs);
  return result;
}

}  // namespace ofsdp::importer
