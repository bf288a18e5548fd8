#include "importer/graph/graph.h"

#include <algorithm>
#include <string_view>

#include "kernels/base/budgets.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

ValueId Graph::find(const std::string& name) const {
  for (size_t id = 1; id < values.size(); ++id) {
    if (values[id].name == name) return static_cast<ValueId>(id);
  }
  return 0;
}

std::string Graph::describe(const Node& node) const {
  return format_text("{}: node '{}' ({})", file, node.name, node.op->full_name());
}

uint64_t node_seed(const Node& node) {
  if (!node.op->random) return 0;
  return Fnv1a().add(node.name).value() + static_cast<uint64_t>(node.attributes.i("seed", 0));
}

namespace {

std::string declared_text(const Value& value) {
  std::vector<std::string> axes;
  for (const Dim& dim : value.declared) {
    axes.push_back(dim.size >= 0 ? std::to_string(dim.size)
                                 : (dim.symbol.empty() ? "?" : dim.symbol));
  }
  return format_text("{}[{}]", dtype_name(value.desc.dtype), joined(axes, ", "));
}

std::string names(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<std::string> list;
  for (ValueId id : ids) list.push_back(id == 0 ? "-" : graph.value(id).name);
  return format_text("{}", joined(list, ", "));
}

}  // namespace

std::string text(const Graph& graph) {
  std::string out;
  for (ValueId id : graph.inputs) {
    out += format_text("input {} {}\n", graph.value(id).name, declared_text(graph.value(id)));
  }
  for (const Parameter& p : graph.parameters) {
    out += format_text("parameter {} {}{}\n", p.name, graph.value(p.value).desc.text(),
                       p.trained ? "" : " frozen");
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    out += format_text("n{}{} {} '{}' ({}) -> ", i, node.backward ? " backward" : "",
                       node.op->full_name(), node.name, names(graph, node.inputs));
    for (ValueId id : node.outputs) {
      if (id != 0) out += graph.value(id).name + " " + graph.value(id).desc.text() + " ";
    }
    out += node.attributes.text() + "\n";
  }
  out += "outputs " + names(graph, graph.outputs) + "\n";
  return out;
}

namespace {

Status check_narrow_types(const Node& node, const std::vector<TensorDesc>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_narrow(inputs[i].dtype) || node.op->narrow_types) continue;
    return input_error("input {}: expected a type to compute with, found {}", i, inputs[i].text());
  }
  return ok_status();
}

}  // namespace

Result<std::vector<TensorDesc>> infer_outputs(const Graph& graph, const Node& node) {
  InferContext context{node.attributes, {}, {}, {}};
  for (ValueId id : node.inputs) {
    context.inputs.push_back(id == 0 ? TensorDesc{} : graph.value(id).desc);
    context.constants.push_back(id == 0 ? nullptr : graph.value(id).constant);
  }
  for (ValueId id : node.outputs) context.wanted.push_back(id != 0);
  auto fail = [&](Status status) { return std::move(status).with_prefix(graph.describe(node)); };
  if (static_cast<int>(node.inputs.size()) < node.op->min_inputs) {
    return fail(input_error("expected at least {} inputs, found {}", node.op->min_inputs,
                            node.inputs.size()));
  }
  // ONNX's checker covers only ONNX operators. Our own passes may leave out inputs.
  for (int i = 0; node.op->domain != kOwnDomain && i < node.op->min_inputs; ++i) {
    if (node.inputs[static_cast<size_t>(i)] != 0) continue;
    return fail(input_error("expected an input {}, found none", i));
  }
  for (int index : node.op->constant_inputs) {
    const auto i = static_cast<size_t>(index);
    if (context.has(i) && context.constant(i) == nullptr) {
      return fail(
          input_error("input {} ('{}') must be known while planning, but it depends on data", index,
                      graph.value(node.inputs[i]).name));
    }
  }
  if (auto narrow = check_narrow_types(node, context.inputs); !narrow.ok()) {
    return fail(std::move(narrow));
  }
  auto descs = node.op->infer(context);
  if (!descs.ok()) return fail(std::move(descs).status());
  if (descs->size() < node.outputs.size()) {
    return fail(input_error("has {} outputs, but the operator gives {}", node.outputs.size(),
                            descs->size()));
  }
  for (const TensorDesc& desc : *descs) {
    if (auto size = check_size(desc); !size.ok()) return fail(std::move(size));
  }
  return descs;
}

Result<std::vector<ValueId>> GraphEditor::add(const std::string& op, const std::string& node_name,
                                              const std::vector<ValueId>& inputs,
                                              const Attributes& attributes, size_t num_outputs,
                                              bool backward) {
  Node node{&graph_.registry->get(op), node_name, attributes, inputs, {}, backward};
  for (size_t i = 0; i < num_outputs; ++i) {
    const std::string name = i == 0 ? node_name : format_text("{}.{}", node_name, i);
    node.outputs.push_back(add_value({name, ValueKind::kActivation, {}}));
  }
  OFSDP_ASSIGN_OR_RETURN(auto descs, infer_outputs(graph_, node));
  for (size_t i = 0; i < num_outputs; ++i) graph_.value(node.outputs[i]).desc = descs[i];
  graph_.nodes.push_back(node);
  return node.outputs;
}

Result<ValueId> GraphEditor::add1(const std::string& op, const std::string& node_name,
                                  const std::vector<ValueId>& inputs,
                                  const Attributes& attributes) {
  OFSDP_ASSIGN_OR_RETURN(auto outputs, add(op, node_name, inputs, attributes));
  return outputs[0];
}

ValueId GraphEditor::add_constant(const std::string& name, ConstantPtr value) {
  const TensorDesc desc = value->desc;
  return add_value({name, ValueKind::kConstant, desc, {}, std::move(value)});
}

ValueId GraphEditor::add_value(Value value) {
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size() - 1);
}

Status GraphEditor::place(Node made) {
  OFSDP_RETURN_IF_ERROR(check_outputs(graph_, made));
  graph_.nodes.push_back(std::move(made));
  return {};
}

Status GraphEditor::place_inferred(Node made) {
  OFSDP_RETURN_IF_ERROR(infer_descs(graph_, made).status());
  graph_.nodes.push_back(std::move(made));
  return {};
}

Status GraphEditor::change(Node& node, Node made) {
  OFSDP_RETURN_IF_ERROR(check_outputs(graph_, made));
  node = std::move(made);
  return {};
}

Status GraphEditor::change_descs(Node& node, Node made) {
  OFSDP_RETURN_IF_ERROR(infer_descs(graph_, made).status());
  node = std::move(made);
  return {};
}

Status check_outputs(const Graph& graph, const Node& node) {
  OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_outputs(graph, node));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == 0) continue;
    const Value& value = graph.value(node.outputs[i]);
    if (descs[i].dtype == value.desc.dtype && descs[i].shape == value.desc.shape) continue;
    return input_error("{}: output {} ('{}'): expected {}, as the operator gives, found {}",
                       graph.describe(node), i, value.name, descs[i].text(), value.desc.text());
  }
  return {};
}

void prune(Graph& graph, const std::vector<ValueId>& wanted) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId id : wanted) needed[static_cast<size_t>(id)] = true;
  std::vector<Node> kept;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    Node& node = graph.nodes[i];
    const bool used = std::ranges::any_of(
        node.outputs, [&](ValueId id) { return id != 0 && needed[static_cast<size_t>(id)]; });
    if (!used) continue;
    for (ValueId id : node.inputs) needed[static_cast<size_t>(id)] = true;
    kept.push_back(std::move(node));
  }
  std::ranges::reverse(kept);
  graph.nodes = std::move(kept);
}

Status fold(Graph& graph, const Node& node) {
  Problem problem{node.attributes, {}, {}, {}};
  std::vector<TensorView> inputs, outputs;
  for (ValueId id : node.inputs) {
    const Value& value = graph.value(id);
    problem.inputs.push_back(id == 0 ? TensorDesc{} : value.desc);
    problem.constants.push_back(id == 0 ? nullptr : value.constant);
    auto* data = value.constant ? const_cast<std::byte*>(value.constant->bytes.data()) : nullptr;
    inputs.push_back({data, problem.inputs.back()});
  }
  std::vector<std::shared_ptr<Constant>> results;
  for (ValueId id : node.outputs) {
    auto result = std::make_shared<Constant>();
    const int64_t numel = id == 0 ? 0 : graph.value(id).desc.numel();
    OFSDP_REJECT_IF(numel > kMaxFolded,
                    "{}: expected at most {} elements of a value that is known while planning, "
                    "found {}",
                    graph.describe(node), kMaxFolded, numel);
    result->desc = id == 0 ? TensorDesc{} : graph.value(id).desc;
    result->bytes.resize(id == 0 ? 0 : result->desc.bytes());
    problem.outputs.push_back(result->desc);
    outputs.push_back({result->bytes.data(), result->desc});
    results.push_back(std::move(result));
  }
  if (node.op->view) {
    results[0]->bytes = graph.value(node.inputs[0]).constant->bytes;
  } else {
    OFSDP_ASSIGN_OR_RETURN(const auto kernel,
                           prefixed(graph.describe(node), create_kernel(*node.op, problem)));
    std::vector<std::byte> workspace(kernel->workspace_bytes() + kTensorAlignment);
    void* aligned = workspace.data();
    size_t room = workspace.size();
    std::align(kTensorAlignment, kernel->workspace_bytes(), aligned, room);
    const StepContext context;
    OFSDP_RETURN_IF_ERROR(kernel->run({inputs, outputs, static_cast<std::byte*>(aligned), &context})
                              .with_prefix(graph.describe(node)));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == 0) continue;
    Value& value = graph.value(node.outputs[i]);
    value.kind = ValueKind::kConstant;
    value.constant = std::move(results[i]);
  }
  return {};
}

Result<ConstantPtr> fold_one(const Registry& registry, const Node& node,
                             const std::vector<ConstantPtr>& inputs) {
  Graph graph;
  graph.registry = &registry;
  GraphEditor editor(graph);
  Node copy = node;
  for (size_t i = 0; i < inputs.size(); ++i) {
    copy.inputs[i] = inputs[i] == nullptr ? 0 : editor.add_constant("", inputs[i]);
  }
  copy.outputs = {editor.add_value({node.name, ValueKind::kActivation, {}})};
  OFSDP_ASSIGN_OR_RETURN(const auto descs, infer_outputs(graph, copy));
  graph.value(copy.outputs[0]).desc = descs[0];
  OFSDP_RETURN_IF_ERROR(fold(graph, copy));
  return graph.value(copy.outputs[0]).constant;
}

}  // namespace ofsdp::importer
