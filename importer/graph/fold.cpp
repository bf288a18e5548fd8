#include "importer/graph/fold.h"

#include "kernels/base/budgets.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {

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
    OFSDP_REJECT_IF(numel > kMostFolded,
                    "{}: expected at most {} elements of a value that is known while planning, "
                    "found {}",
                    graph.describe(node), kMostFolded, numel);
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
