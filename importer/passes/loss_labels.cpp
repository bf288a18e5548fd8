#include "importer/passes/loss_labels.h"

#include <algorithm>

namespace ofsdp::importer {
namespace {

const Node* maker_of(const Graph& graph, ValueId id) {
  for (const Node& node : graph.nodes) {
    if (std::ranges::find(node.outputs, id) != node.outputs.end()) return &node;
  }
  return nullptr;
}

// The value behind views, casts and copies.
ValueId behind_views(const Graph& graph, ValueId id) {
  while (const Node* node = maker_of(graph, id)) {
    if (!node->op->view && node->op->full_name() != "Cast") break;
    id = node->inputs[0];
  }
  return id;
}

const Node* class_loss_node(const Graph& graph) {
  const Node* node = maker_of(graph, behind_views(graph, graph.loss));
  if (node == nullptr) return nullptr;
  static constexpr std::string_view kNames[] = {
      "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "ofsdp.NarrowCrossEntropyLoss"};
  return std::ranges::find(kNames, node->op->full_name()) != std::end(kNames) ? node : nullptr;
}

// Where the labels of the evaluation's accuracy come from: the column, or the loss node's own
// input.
ValueId labels_for_accuracy(const Graph& graph, const LossSpec& spec) {
  if (!spec.labels.empty()) {
    for (ValueId id : graph.inputs) {
      if (graph.value(id).name == spec.labels) return id;
    }
  }
  const Node* node = class_loss_node(graph);
  return node == nullptr ? 0 : node->inputs[1];
}

}  // namespace

Status add_matches(Graph& graph, const LossSpec& spec, ValueId prediction) {
  const ValueId labels = labels_for_accuracy(graph, spec);
  if (prediction == 0 || labels == 0 || !is_integer(graph.value(labels).desc.dtype)) return {};
  const Shape& shape = graph.value(prediction).desc.shape;
  const int64_t classes = shape.rank() == 0 ? 0 : shape[shape.rank() - 1];
  if (classes < 2 ||
      graph.value(prediction).desc.numel() != graph.value(labels).desc.numel() * classes) {
    return {};
  }
  GraphEditor editor(graph);
  OFSDP_ASSIGN_OR_RETURN(const ValueId rows,
                         editor.add1("ofsdp.CollapseLeading", "accuracy.prediction", {prediction}));
  OFSDP_ASSIGN_OR_RETURN(ValueId flat,
                         editor.add1("ofsdp.CollapseAll", "accuracy.labels", {labels}));
  if (graph.value(flat).desc.dtype != DType::kInt64) {
    OFSDP_ASSIGN_OR_RETURN(flat,
                           editor.add1("Cast", "accuracy.cast", {flat}, {{"to", int64_t{7}}}));
  }
  const LossCount count = loss_count(graph);
  const int64_t ignored = count.by_label ? count.ignore_index : spec.ignore_index;
  OFSDP_ASSIGN_OR_RETURN(graph.matches, editor.add1("ofsdp.ArgmaxMatches", "accuracy", {rows, flat},
                                                    {{"ignore_index", ignored}}));
  return {};
}

LossCount loss_count(const Graph& graph) {
  LossCount count;
  const Node* node = class_loss_node(graph);
  if (node == nullptr || node->attributes.s("reduction", "mean") != "mean") return count;
  const ValueId labels = behind_views(graph, node->inputs[1]);
  if (graph.value(labels).kind != ValueKind::kInput) return count;
  const bool weighted = node->inputs.size() > 2 && node->inputs[2] != 0;
  if (weighted && graph.value(node->inputs[2]).constant == nullptr) return count;
  count.by_label = true;
  count.labels = graph.value(labels).name;
  count.ignore_index = node->attributes.i("ignore_index", kNoIgnoreIndex);
  count.classes = graph.value(node->inputs[0]).desc.shape[1];
  if (weighted) count.class_weights = graph.value(node->inputs[2]).constant;
  return count;
}

}  // namespace ofsdp::importer
