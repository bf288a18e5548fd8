#include <algorithm>

#include "importer/export/graph_model.h"
#include "importer/graph/graph_uses.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

Status use_indices(Graph& graph, Node& node) {
  OFSDP_REJECT_IF(node.attributes.i("storage_order", 0) != 0 && node.outputs.size() > 1,
                  "{}: storage_order 1 has no gradient graph", graph.describe(node));
  if (node.outputs.size() < 3) return {};
  const ValueId winners = node.outputs[2];
  Node made = node;
  made.outputs.resize(2);
  GraphEditor editor(graph);
  if (made.outputs[1] == 0) {
    made.outputs[1] = winners;
    return editor.change_descs(node, std::move(made));  // int64 in place of the int32 of output 2
  }
  const ValueId indices = made.outputs[1];
  OFSDP_RETURN_IF_ERROR(editor.change(node, std::move(made)));
  for (Node& reader : graph.nodes) {
    if (std::ranges::count(reader.inputs, winners) == 0) continue;
    Node other = reader;
    std::ranges::replace(other.inputs, winners, indices);
    OFSDP_RETURN_IF_ERROR(editor.change(reader, std::move(other)));
  }
  return {};
}

// Adds the nodes that follow a normalization.
class StatisticsBuilder {
 public:
  StatisticsBuilder(Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  // x in `shape`, its mean and variance over `axes`; the nodes are put at the end of the graph.
  Status make(const Shape& shape, const std::vector<int64_t>& axes, bool inverse) {
    const ValueId x = add("Reshape", {node_.inputs[0], ints(shape.axes())});
    const ValueId over = ints(axes);
    mean_ = add("ReduceMean", {x, over});
    const ValueId deviation = add("Sub", {x, mean_});
    variance_ = add("ReduceMean", {add("Mul", {deviation, deviation}), over});
    if (!inverse) return std::move(status_);
    const ValueId epsilon = scalar(node_.attributes.f("epsilon", 1e-5f));
    const ValueId root = add("Sqrt", {add("Add", {variance_, epsilon})});
    variance_ = add("Reciprocal", {root});
    return std::move(status_);
  }
  // Each becomes the output that was there.
  Status give(size_t first_output) {
    for (const ValueId made : {mean_, variance_}) {
      const ValueId old = node_.outputs[first_output++];
      if (old == 0) continue;
      add("Reshape", {made, ints(graph_.value(old).desc.shape.axes())});
      if (!status_.ok()) return std::move(status_);
      Node giving = graph_.nodes.back();
      giving.outputs = {old};
      OFSDP_RETURN_IF_ERROR(GraphEditor(graph_).change(graph_.nodes.back(), std::move(giving)));
    }
    return {};
  }

 private:
  ValueId add(const char* op, const std::vector<ValueId>& inputs) {
    if (!status_.ok()) return 0;
    const std::string name = format_text("{}.statistics{}", node_.name, count_++);
    auto made = GraphEditor(graph_).add1(op, name, inputs);
    if (!made.ok()) status_ = std::move(made).status();
    return made.ok() ? *made : 0;
  }
  ValueId ints(const std::vector<int64_t>& values) {
    return add_ints(graph_, format_text("{}.ints{}", node_.name, count_++), values);
  }
  ValueId scalar(float value) {
    return GraphEditor(graph_).add_constant(
        format_text("{}.epsilon", node_.name),
        make_constant<float>(DType::kFloat32, Shape{}, {&value, 1}));
  }

  Graph& graph_;
  const Node& node_;
  Status status_;
  ValueId mean_ = 0, variance_ = 0;
  int count_ = 0;
};

// Returns the first statistic among the node's outputs; 0: it has none.
size_t first_statistic(const Node& node) {
  const std::string op = node.op->full_name();
  const bool groups = op == "GroupNormalization" || op == "InstanceNormalization";
  const size_t first = groups ? 1 : op == "BatchNormalization" ? 3 : 0;
  return first > 0 && node.outputs.size() == first + 2 ? first : 0;
}

Status add_with_statistics(Graph& graph, Node node, size_t first) {
  StatisticsBuilder builder(graph, node);
  const Shape x = graph.value(node.inputs[0]).desc.shape;
  const int64_t channels = x.rank() > 1 ? x[1] : 1;
  const int64_t groups =
      node.op->name == "GroupNormalization" ? node.attributes.i("num_groups", 1) : channels;
  Node plain = node;
  plain.outputs.resize(first);
  OFSDP_RETURN_IF_ERROR(GraphEditor(graph).place(std::move(plain)));
  const int64_t rest = x.numel() / std::max<int64_t>(x[0] * groups, 1);
  const bool batch = first == 3;
  OFSDP_RETURN_IF_ERROR(builder.make({x[0], groups, rest},
                                     batch ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{2},
                                     /*inverse=*/!batch));
  return builder.give(first);
}

}  // namespace

Result<Graph> with_standard_outputs(Graph graph) {
  for (Node& node : graph.nodes) {
    if (node.op->full_name() == "MaxPool") OFSDP_RETURN_IF_ERROR(use_indices(graph, node));
  }
  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (Node& node : nodes) {
    const size_t first = first_statistic(node);
    if (first == 0) {
      graph.nodes.push_back(std::move(node));
    } else {
      OFSDP_RETURN_IF_ERROR(add_with_statistics(graph, std::move(node), first));
    }
  }
  return graph;
}

}  // namespace ofsdp::importer
