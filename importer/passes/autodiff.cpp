#include "importer/passes/autodiff.h"

#include <algorithm>
#include <map>

#include "importer/passes/loss_path.h"

namespace ofsdp::importer {
namespace {

class Autodiff;

// What one node's grad sees of the graph.
class NodeGradBuilder final : public GradBuilder {
 public:
  NodeGradBuilder(Autodiff& autodiff, size_t node) : autodiff_(autodiff), node_(node) {}
  const Attributes& attributes() const override;
  size_t num_inputs() const override;
  Ref input(size_t i) const override;
  Ref output(size_t i) override;
  Ref grad_output(size_t i) const override;
  bool needs_grad(size_t i) const override;
  const TensorDesc& desc(Ref ref) const override;
  ConstantPtr constant_value(Ref ref) const override;
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override;
  Ref constant(ConstantPtr value) override;
  void set_grad(size_t input, Ref grad) override;
  void fail(Status status) override;

 private:
  const Node& node() const;

  Autodiff& autodiff_;
  size_t node_;
};

class Autodiff {
 public:
  explicit Autodiff(const Graph& source) : graph_(source), editor_(graph_) {}

  Result<Graph> run() {
    path_ = find_loss_path(graph_);
    OFSDP_RETURN_IF_ERROR(check_differentiable(graph_, path_));
    seed();
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      if (!path_.nodes[i] || !reached(i)) continue;
      NodeGradBuilder builder(*this, i);
      graph_.nodes[i].op->grad(builder);
      if (!status_.ok()) return std::move(status_);
    }
    return finish();
  }

 private:
  friend class NodeGradBuilder;

  // Does a gradient arrive at any output of the node?
  bool reached(size_t i) const {
    return std::ranges::any_of(graph_.nodes[i].outputs,
                               [&](ValueId id) { return id != 0 && grads_.contains(id); });
  }

  void seed() {
    const TensorDesc scalar{DType::kFloat32, {}};
    graph_.loss_weight = editor_.add_value({"loss_weight", ValueKind::kLossWeight, scalar});
    ValueId start = graph_.loss_weight;
    if (graph_.value(graph_.loss).desc.shape.rank() != 0) {
      start = add("Reshape", {start, graph_ints(graph_.value(graph_.loss).desc.shape.axes())});
    }
    grads_[graph_.loss] = {start};
  }

  ValueId graph_ints(const std::vector<int64_t>& values) {
    const Shape shape{static_cast<int64_t>(values.size())};
    return editor_.add_constant("axes", make_constant<int64_t>(DType::kInt64, shape, values));
  }

  ValueId add(const std::string& op, const std::vector<ValueId>& inputs) {
    return emit(op, "grad", inputs, {}, 1)[0];
  }

  // A node of ours cannot fail but by a bug of a grad rule; the first failure ends the pass.
  std::vector<ValueId> emit(const std::string& op, const std::string& name,
                            const std::vector<ValueId>& inputs, const Attributes& attributes,
                            size_t num_outputs) {
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

  // The gradient of a value: the sum over its uses so far, or 0.
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
    Node* lookup = graph_.value(id).kind == ValueKind::kParameter ? lookup_behind(a, b) : nullptr;
    if (lookup == nullptr) return emit("Add", "grad." + graph_.value(id).name, {a, b}, {}, 1)[0];
    lookup->inputs.push_back(a);
    return b;
  }

  // The GatherGrad that made `b`, when it came after what made `a`: it can add onto that the few
  // rows it has (a tied embedding), instead of a second gradient of every row.
  Node* lookup_behind(ValueId a, ValueId b) {
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
    std::vector<ValueId> wanted = {graph_.loss};
    for (const Carried& c : graph_.carried) wanted.push_back(c.next);
    std::map<ValueId, int> owners;
    for (Parameter& p : graph_.parameters) {
      if (!p.trained) continue;
      ValueId gradient = total(p.value);
      if (gradient != 0) gradient = own_gradient(p, gradient, owners);
      p.gradient = gradient;
      if (gradient != 0) wanted.push_back(gradient);
    }
    if (!status_.ok()) return std::move(status_);
    prune(graph_, wanted);
    return std::move(graph_);
  }

  // A parameter looks at all nodes: each is looked at once.
  void index_new_nodes() {
    made_.resize(graph_.values.size(), false);
    used_.resize(graph_.values.size(), false);
    for (; indexed_ < graph_.nodes.size(); ++indexed_) {
      const Node& node = graph_.nodes[indexed_];
      for (ValueId id : node.inputs) used_[static_cast<size_t>(id)] = true;
      for (ValueId id : node.outputs) made_[static_cast<size_t>(id)] = !node.op->view;
    }
  }

  // A value that a node of its own writes: copied where it is a view, an input, or another's
  // gradient.
  ValueId own_gradient(const Parameter& p, ValueId gradient, std::map<ValueId, int>& owners) {
    index_new_nodes();
    const auto g = static_cast<size_t>(gradient);
    const bool fresh = made_[g] && !used_[g];
    if (fresh && owners.try_emplace(gradient, 1).second) return gradient;
    return emit("ofsdp.Copy", "grad." + p.name, {gradient}, {}, 1)[0];
  }

  Graph graph_;
  GraphEditor editor_;
  LossPath path_;
  std::map<ValueId, std::vector<ValueId>> grads_;
  std::vector<bool> made_, used_;  // per value: by a node that is no view; as an input
  size_t indexed_ = 0;             // nodes that these know
  Status status_;
  int emitted_ = 0;
};

const Node& NodeGradBuilder::node() const { return autodiff_.graph_.nodes[node_]; }

const Attributes& NodeGradBuilder::attributes() const { return node().attributes; }

size_t NodeGradBuilder::num_inputs() const { return node().inputs.size(); }

Ref NodeGradBuilder::input(size_t i) const {
  return {i < node().inputs.size() ? node().inputs[i] : 0};
}

Ref NodeGradBuilder::output(size_t i) {
  Node& node = autodiff_.graph_.nodes[node_];
  if (node.outputs.size() <= i) node.outputs.resize(i + 1, 0);
  if (node.outputs[i] != 0) return {node.outputs[i]};
  const std::string name = format_text("{}.{}", node.name, i);
  const ValueId id = autodiff_.editor_.add_value({name, ValueKind::kActivation, {}});
  node.outputs[i] = id;  // add_value touches values only
  auto descs = infer_outputs(autodiff_.graph_, node);
  if (descs.ok()) {
    autodiff_.graph_.value(id).desc = (*descs)[i];
  } else if (autodiff_.status_.ok()) {
    autodiff_.status_ = std::move(descs).status();
  }
  return {id};
}

Ref NodeGradBuilder::grad_output(size_t i) const {
  return {i < node().outputs.size() && node().outputs[i] != 0 ? autodiff_.total(node().outputs[i])
                                                              : 0};
}

bool NodeGradBuilder::needs_grad(size_t i) const {
  return i < node().inputs.size() && node().inputs[i] != 0 &&
         autodiff_.path_.needs_grad(node().inputs[i]);
}

const TensorDesc& NodeGradBuilder::desc(Ref ref) const {
  return autodiff_.graph_.value(ref.id).desc;
}

ConstantPtr NodeGradBuilder::constant_value(Ref ref) const {
  return autodiff_.graph_.value(ref.id).constant;
}

std::vector<Ref> NodeGradBuilder::emit(const std::string& op, const std::vector<Ref>& inputs,
                                       const Attributes& attributes, size_t num_outputs) {
  std::vector<ValueId> ids;
  for (Ref ref : inputs) ids.push_back(ref.id);
  std::vector<Ref> refs;
  const std::string name = node().name + ".grad";
  for (ValueId id : autodiff_.emit(op, name, ids, attributes, num_outputs)) refs.push_back({id});
  return refs;
}

Ref NodeGradBuilder::constant(ConstantPtr value) {
  return {autodiff_.editor_.add_constant(node().name + ".constant", std::move(value))};
}

void NodeGradBuilder::set_grad(size_t input, Ref grad) {
  if (!needs_grad(input) || !grad) return;
  autodiff_.grads_[node().inputs[input]].push_back(grad.id);
}

void NodeGradBuilder::fail(Status status) {
  if (!autodiff_.status_.ok()) return;
  autodiff_.status_ = std::move(status).with_prefix(autodiff_.graph_.describe(node()));
}

}  // namespace

Result<Graph> autodiff(const Graph& graph) { return Autodiff(graph).run(); }

}  // namespace ofsdp::importer
