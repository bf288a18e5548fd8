#include "importer/passes/specialize.h"

#include <algorithm>
#include <functional>
#include <set>

#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "importer/graph/graph.h"
#include "kernels/base/budgets.h"
#include "kernels/base/status.h"
#include "kernels/core/op_def.h"

namespace ofsdp::importer {
namespace {

// expand_body replaces a node, while the graph is being specialized, by the operator's body
// (kernels/core/op_def.h). Each new node goes through `take`, as the file's nodes do: it is folded
// or appended, and the outputs get shapes.
//
// REQUIRES: the operator has a body; the input shapes are known. Errors: kInput with file and node,
// or from `take`.

using TakeNode = std::function<Status(Node)>;

class BodyExpansion final : public BodyBuilder {
 public:
  BodyExpansion(Graph& graph, const Node& node, std::vector<TensorDesc> outputs,
                const TakeNode& take)
      : graph_(graph), node_(node), descs_(std::move(outputs)), take_(take) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == 0) descs_[i] = {};
    }
  }

  Attributes attributes() const override { return node_.attributes; }
  Ref input(size_t i) const override {
    return i < node_.inputs.size() ? Ref{node_.inputs[i]} : Ref{};
  }
  TensorDesc desc(Ref ref) const override { return graph_.value(ref.id).desc; }
  ConstantPtr constant_value(Ref ref) const override { return graph_.value(ref.id).constant; }
  TensorDesc output_desc(size_t i) const override {
    return i < node_.outputs.size() ? descs_[i] : TensorDesc{};
  }
  Ref constant(ConstantPtr value) override {
    return {GraphEditor(graph_).add_constant(node_.name + ".constant", std::move(value))};
  }
  void fail(Status status) override {
    if (status_.ok()) status_ = std::move(status);
  }

  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override {
    Node made{&graph_.registry->get(op), "", attributes, {}, {}};
    made.name = format_text("{}/{}.{}", node_.name, made.op->name, emitted_++);
    for (const Ref ref : inputs) made.inputs.push_back(ref.id);
    std::vector<Ref> refs;
    for (size_t i = 0; i < num_outputs; ++i) {
      const std::string name = i == 0 ? made.name : format_text("{}.{}", made.name, i);
      made.outputs.push_back(GraphEditor(graph_).add_value({name, ValueKind::kActivation, {}}));
      refs.push_back({made.outputs.back()});
    }
    take(std::move(made));
    if (status_.ok()) return refs;
    // After an error, the rest gets placeholders; only the error counts.
    for (Ref& ref : refs) ref = {GraphEditor(graph_).add_value({"", ValueKind::kActivation, {}})};
    return refs;
  }

  void set_output(size_t i, Ref ref) override {
    if (i >= node_.outputs.size() || node_.outputs[i] == 0) return;
    take({&graph_.registry->get("Identity"), node_.name, {}, {ref.id}, {node_.outputs[i]}});
  }

  Status finish() { return std::move(status_); }

 private:
  // Ignores nodes after an error.
  void take(Node made) {
    if (status_.ok()) fail(take_(std::move(made)));
  }

  Graph& graph_;
  const Node& node_;
  std::vector<TensorDesc> descs_;
  const TakeNode& take_;
  Status status_;
  int emitted_ = 0;
};

Status expand_body(Graph& graph, const Node& node, const TakeNode& take) {
  OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_outputs(graph, node));
  BodyExpansion expansion(graph, node, descs, take);
  node.op->body(expansion);
  OFSDP_RETURN_IF_ERROR(expansion.finish());
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == 0) continue;
    const TensorDesc& made = graph.value(node.outputs[i]).desc;
    OFSDP_CHECK(made == descs[i], "{}: its body gives {}, not {}", graph.describe(node),
                made.text(), descs[i].text());
  }
  return {};
}

}  // namespace

int64_t fixed_batch(const Graph& graph) {
  for (ValueId id : graph.inputs) {
    const auto& declared = graph.value(id).declared;
    if (!declared.empty() && declared[0].size >= 0) return declared[0].size;
  }
  return -1;
}

Result<std::map<std::string, Shape>> bind_inputs(const Graph& graph,
                                                 const std::map<std::string, Shape>& rows,
                                                 int64_t batch) {
  std::map<std::string, Shape> shapes;
  std::map<std::string, std::pair<int64_t, std::string>>
      symbols;  // size, and the input that fixed it
  for (ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    const auto row = rows.find(input.name);
    OFSDP_CHECK(row != rows.end(), "no column for {}", input.name);
    std::vector<int64_t> axes{batch};
    axes.insert(axes.end(), row->second.axes().begin(), row->second.axes().end());
    OFSDP_REJECT_IF(axes.size() != input.declared.size(),
                    "{}: input '{}' has {} axes, its column gives {} ({})", graph.file, input.name,
                    input.declared.size(), axes.size(), Shape(axes).text());
    for (size_t i = 0; i < axes.size(); ++i) {
      const Dim& dim = input.declared[i];
      OFSDP_REJECT_IF(dim.size >= 0 && dim.size != axes[i],
                      "{}: axis {} of input '{}' is {}, {} {}", graph.file, i, input.name, dim.size,
                      i == 0 ? "the micro-batch is" : "its column has", axes[i]);
      if (dim.symbol.empty()) continue;
      const auto [bound, fresh] = symbols.try_emplace(dim.symbol, axes[i], input.name);
      OFSDP_REJECT_IF(!fresh && bound->second.first != axes[i],
                      "{}: axis '{}' is {} in column '{}' and {} in column '{}'", graph.file,
                      dim.symbol, bound->second.first, bound->second.second, axes[i], input.name);
    }
    TensorDesc desc{input.desc.dtype, Shape(std::move(axes))};
    OFSDP_RETURN_IF_ERROR(check_size(desc).with_prefix(
        format_text("{}: input '{}'", graph.file, printable(input.name))));
    shapes[input.name] = std::move(desc.shape);
  }
  return shapes;
}

namespace {

constexpr int64_t kAlwaysFolded = 4096;  // in bytes: shapes and axes that operators must know

bool foldable(const Graph& graph, const Node& node) {
  if (node.op->random) return false;
  if (node.op->view) return graph.value(node.inputs[0]).kind == ValueKind::kConstant;
  if (node.op->shape_only) return true;
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    return id == 0 || graph.value(id).kind == ValueKind::kConstant;
  });
}

// In evaluation Dropout passes everything through and BatchNormalization uses the running
// statistics, except if it normalizes weights (weight standardization, Qiao et al. 2019), which
// hold no batch.
Node without_training(const Graph& graph, Node node, bool of_weights) {
  Node made = node;
  if (node.op->full_name() == "BatchNormalization") {
    if (!of_weights) made.attributes.set("training_mode", int64_t{0});
    made.outputs.resize(1);
  } else if (node.op->full_name() == "Dropout") {
    made = {&graph.registry->get("Identity"), node.name, {}, {node.inputs[0]}, {node.outputs[0]}};
    made.backward = node.backward;
  }
  GraphEditor::change_symbolic(node, std::move(made));
  return node;
}

// CastLike reads only the second input's type: as a Cast it folds with the first.
Node without_like(const Graph& graph, Node node) {
  if (node.op->full_name() != "CastLike") return node;
  Node made = node;
  made.op = &graph.registry->get("Cast");
  made.inputs.resize(1);
  made.attributes.set("to", onnx_number(graph.value(node.inputs[1]).desc.dtype));
  GraphEditor::change_symbolic(node, std::move(made));
  return node;
}

class Specializer {
 public:
  // REQUIRES: `graph` has no nodes; the input shapes are known.
  Specializer(Graph graph, Mode mode, const Lowering* lowering)
      : graph_(std::move(graph)), bounded_(graph_), mode_(mode), lowering_(lowering) {}

  Result<Graph> run(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) OFSDP_RETURN_IF_ERROR(take(node));
    OFSDP_RETURN_IF_ERROR(bounded_.check_outputs());
    return std::move(graph_);
  }

 private:
  // Folds the node, appends it, or replaces it by others.
  Status take(Node node) {
    if (mode_ == Mode::kEval) {
      const bool of_weights = !node.inputs.empty() && holds_no_samples(node.inputs[0]);
      node = without_training(graph_, std::move(node), of_weights);
    }
    node = without_like(graph_, std::move(node));
    if (lowering_ != nullptr) {
      OFSDP_ASSIGN_OR_RETURN(const bool replaced, lowering_->lower(graph_, node));
      if (replaced) return {};
    }
    if (is_lowered(*node.op, node.attributes)) {
      return expand_body(graph_, node, [&](Node made) { return take(std::move(made)); });
    }
    OFSDP_ASSIGN_OR_RETURN(const bool taken, bounded_.take(node));
    if (taken) return {};
    OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_descs(graph_, node));
    bounded_.watch(node);
    if (!may_fold(node, descs)) {
      note_weights(node);
      graph_.nodes.push_back(std::move(node));
      return {};
    }
    return fold(graph_, node);
  }

  // Returns whether a value depends only on parameters and constants.
  bool holds_no_samples(ValueId id) const {
    if (id == 0 || of_weights_.contains(id)) return true;
    const ValueKind kind = graph_.value(id).kind;
    return kind == ValueKind::kParameter || kind == ValueKind::kConstant;
  }

  void note_weights(const Node& node) {
    const auto no_samples = [this](ValueId id) { return holds_no_samples(id); };
    if (node.op->random || !std::ranges::all_of(node.inputs, no_samples)) return;
    of_weights_.insert(node.outputs.begin(), node.outputs.end());
  }

  bool may_fold(const Node& node, const std::vector<TensorDesc>& descs) {
    const bool small = std::ranges::all_of(
        descs, [](const TensorDesc& d) { return !d.present() || d.numel() <= kMaxFolded; });
    int64_t bytes = 0;
    for (const TensorDesc& desc : descs) bytes += static_cast<int64_t>(desc.bytes());
    const bool fits = bytes <= kAlwaysFolded || folded_bytes_ + bytes <= kMaxFoldedBytes;
    if (!small || !fits || !foldable(graph_, node)) return false;
    folded_bytes_ += bytes;
    return true;
  }

  Graph graph_;
  BoundedAxes bounded_;  // refers to graph_
  Mode mode_;
  const Lowering* lowering_;
  int64_t folded_bytes_ = 0;
  std::set<ValueId> of_weights_;  // values made from parameters and constants alone
};

}  // namespace

Result<Graph> specialize(const Graph& graph, const std::map<std::string, Shape>& shapes, Mode mode,
                         const Lowering* lowering) {
  if (lacks_nhwc_order(graph)) {
    OFSDP_ASSIGN_OR_RETURN(const NhwcOrder found, find_nhwc_order(graph, shapes, mode, lowering));
    return specialize(with_nhwc_order(graph, found.order), shapes, mode, lowering);
  }
  Graph result = graph;
  result.nodes.clear();
  for (ValueId id : result.inputs) {
    Value& input = result.value(id);
    input.desc.shape = shapes.at(input.name);
  }
  return Specializer(std::move(result), mode, lowering).run(graph.nodes);
}

namespace {

bool lacks_order(const Node& node) {
  const std::string op = node.op->full_name();
  return (op == "com.microsoft.NhwcConv" || op == "com.microsoft.NhwcFusedConv") &&
         !node.attributes.has(kNhwcWeightsLast);
}

}  // namespace

bool lacks_nhwc_order(const Graph& graph) { return std::ranges::any_of(graph.nodes, lacks_order); }

Graph with_nhwc_order(const Graph& graph, NhwcWeights order) {
  Graph made = graph;
  for (Node& node : made.nodes) {
    if (!lacks_order(node)) continue;
    Node ordered = node;
    ordered.attributes.set(kNhwcWeightsLast, int64_t{order == NhwcWeights::kLast});
    GraphEditor::change_symbolic(node, std::move(ordered));
  }
  return made;
}

Result<NhwcOrder> find_nhwc_order(const Graph& graph, const std::map<std::string, Shape>& shapes,
                                  Mode mode, const Lowering* lowering) {
  const auto fit = [&](NhwcWeights order) {
    return specialize(with_nhwc_order(graph, order), shapes, mode, lowering).status();
  };
  Status last = fit(NhwcWeights::kLast), first = fit(NhwcWeights::kFirst);
  if (!last.ok() && !first.ok()) return last;
  return NhwcOrder{last.ok() ? NhwcWeights::kLast : NhwcWeights::kFirst, last.ok() != first.ok()};
}

}  // namespace ofsdp::importer
