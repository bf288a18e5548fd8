#include <algorithm>
#include <map>

#include "importer/graph/graph.h"
#include "importer/passes/model_inputs.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"

namespace ofsdp::importer {
namespace {

bool reads_as_past(const Node& node, ValueId id) {
  const std::vector<int>& past = node.op->past.inputs;
  if (past.empty()) return false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == id && !has_operand(past, i)) return false;
  }
  return true;
}

// Returns the reader's operands if only attention, as a past, and Shape read the value; else null.
const PastOperands* past_operands(const Graph& graph, const GraphUses& uses, ValueId id) {
  const PastOperands* operands = nullptr;
  if (std::ranges::count(graph.outputs, id) != 0) return nullptr;
  for (const size_t reader : uses.readers(id)) {
    const Node& node = graph.nodes[reader];
    if (reads_as_past(node, id)) {
      operands = &node.op->past;
    } else if (!is_operator(node, "Shape")) {
      return nullptr;
    }
  }
  return operands;
}

void drop(std::vector<ValueId>& ids, ValueId id) { std::erase(ids, id); }

// Removes the past from a node and, unless another node reads it, the present from the graph.
void drop_past(Graph& graph, const GraphUses& uses, Node& node, ValueId past) {
  Node made = node;
  std::ranges::replace(made.inputs, past, ValueId{0});
  for (const int output : node.op->past.outputs) {
    const auto i = static_cast<size_t>(output);
    if (i >= made.outputs.size() || !uses.readers(made.outputs[i]).empty()) continue;
    drop(graph.outputs, made.outputs[i]);
    made.outputs[i] = 0;
  }
  GraphEditor::change_symbolic(node, std::move(made));
}

// Returns an axis length in an empty past; -1: the micro-batch.
int64_t length_of(const Value& past, const PastOperands& operands, size_t axis) {
  if (axis == operands.rows_axis) return 0;
  return axis == operands.batch_axis ? -1 : past.declared[axis].size;
}

// Returns nodes that make an empty past's shape in place of `shape`. `input`: any with a row per
// sample.
std::vector<Node> shape_of_empty(Graph& graph, const Node& shape, const PastOperands& operands,
                                 ValueId input) {
  const Value past = graph.value(shape.inputs[0]);
  const auto rank = static_cast<int64_t>(past.declared.size());
  const auto place = [&](const char* name, int64_t otherwise) {
    const int64_t at = shape.attributes.i(name, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const ValueId batch = GraphEditor(graph).add_value(
      {shape.name + ".batch", ValueKind::kActivation, {DType::kInt64, {}}});
  Node join{&graph.registry->get("Concat"), shape.name, {{"axis", int64_t{0}}}, {}, shape.outputs};
  for (int64_t axis = place("start", 0); axis < place("end", rank); ++axis) {
    const int64_t length = length_of(past, operands, static_cast<size_t>(axis));
    const bool of_batch = static_cast<size_t>(axis) == operands.batch_axis;
    join.inputs.push_back(of_batch ? batch : add_ints(graph, shape.name + ".length", {length}));
  }
  const Attributes first{{"start", int64_t{0}}, {"end", int64_t{1}}};
  return {{&graph.registry->get("Shape"), shape.name + ".batch", first, {input}, {batch}}, join};
}

// Replaces Shape nodes that read removed inputs by the shapes that empty pasts have.
void replace_shapes(Graph& graph, const std::map<ValueId, const PastOperands*>& pasts) {
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    const auto past = is_operator(node, "Shape") ? pasts.find(node.inputs[0]) : pasts.end();
    if (past == pasts.end()) {
      nodes.push_back(std::move(node));
      continue;
    }
    const auto made = shape_of_empty(graph, node, *past->second, graph.inputs[0]);
    nodes.insert(nodes.end(), made.begin(), made.end());
  }
  graph.nodes = std::move(nodes);
}

Status check_open(const Graph& graph, ValueId id, const PastOperands& operands) {
  const Value& past = graph.value(id);
  if (past.declared.size() <= operands.rows_axis) return {};
  const int64_t rows = past.declared[operands.rows_axis].size;
  if (rows <= 0) return {};
  return input_error("{}: input '{}': expected a past of length 0 or of any, found {}", graph.file,
                     past.name, rows);
}

}  // namespace

Result<PastFree> without_past(const Graph& graph, const std::vector<std::string>& columns) {
  PastFree made{graph, {}};
  const GraphUses uses(graph);
  std::map<ValueId, const PastOperands*> pasts;
  for (const ValueId id : graph.inputs) {
    const PastOperands* operands = past_operands(graph, uses, id);
    if (operands == nullptr) continue;
    const std::string& name = graph.value(id).name;
    OFSDP_REJECT_IF(std::ranges::find(columns, name) != columns.end(),
                    "{}: input '{}': expected no column, for it is a past, "
                    "which is fed empty; "
                    "found one",
                    graph.file, name);
    OFSDP_RETURN_IF_ERROR(check_open(graph, id, *operands));
    for (const size_t reader : uses.readers(id)) {
      Node& node = made.graph.nodes[reader];
      if (!is_operator(node, "Shape")) drop_past(made.graph, uses, node, id);
    }
    drop(made.graph.inputs, id);
    made.fed_empty.push_back(name);
    pasts[id] = operands;
  }
  OFSDP_REJECT_IF(!pasts.empty() && made.graph.inputs.empty(),
                  "{}: expected an input besides those of a past, found none", graph.file);
  replace_shapes(made.graph, pasts);
  return made;
}

std::string past_line(const std::vector<std::string>& fed_empty) {
  if (fed_empty.empty()) return "";
  const size_t more = fed_empty.size() - 1;
  const std::string others =
      more == 0 ? "" : format_text(" and {} more input{}", more, more == 1 ? "" : "s");
  return format_text("past: {}{} {} fed empty: only past inputs of attention read {}\n",
                     escaped(fed_empty[0]), others, more == 0 ? "is" : "are",
                     more == 0 ? "it" : "them");
}

}  // namespace ofsdp::importer
