#include "importer/graph/graph.h"
#include "importer/passes/passes.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// Returns the parameter at the node's input i if the value may change, else -1.
int changing_parameter(const Graph& graph, const Node& node, size_t i) {
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    const Parameter& parameter = graph.parameters[p];
    if (parameter.value != node.inputs[i]) continue;
    const bool fixed =
        graph.value(parameter.value).kind == ValueKind::kConstant || parameter.reason == "--freeze";
    return fixed ? -1 : static_cast<int>(p);
  }
  return -1;
}

}  // namespace

Status carry_statistics(Graph& graph) {
  GraphEditor editor(graph);
  for (Node& node : graph.nodes) {
    if (node.op->full_name() != "BatchNormalization") continue;
    if (node.attributes.i("training_mode", 0) == 0 || node.inputs.size() < 5) continue;
    Node made = node;
    if (made.outputs.size() < 3) made.outputs.resize(3, 0);
    for (size_t i : {size_t{1}, size_t{2}}) {
      const int parameter = changing_parameter(graph, node, i + 2);
      if (parameter < 0) continue;
      if (made.outputs[i] == 0) {
        const std::string name = format_text("{}.{}", node.name, i == 1 ? "mean" : "variance");
        made.outputs[i] = editor.add_value({name, ValueKind::kActivation, {}});
      }
      graph.carried.push_back({parameter, made.outputs[i]});
    }
    OFSDP_RETURN_IF_ERROR(editor.change_descs(node, std::move(made)));
  }
  return {};
}

namespace {

class Synchronization {
 public:
  Synchronization(Graph& graph, const RankRows& ranks)
      : graph_(graph), editor_(graph), ranks_(ranks) {}

  Status run() {
    const std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node node : nodes) {
      const std::string name = node.op->full_name();
      const bool trains = node.attributes.i("training_mode", 0) != 0;
      if (trains && name == "BatchNormalization") {
        OFSDP_RETURN_IF_ERROR(normalize(std::move(node)));
      } else if (trains && name == "ofsdp.BatchNormalizationGrad") {
        OFSDP_RETURN_IF_ERROR(differentiate(node));
      } else {
        graph_.nodes.push_back(std::move(node));
      }
    }
    return {};
  }

 private:
  // Adds a node for existing output values; 0: nobody reads that output.
  Status add(const char* op, const Node& like, const char* suffix, std::vector<ValueId> inputs,
             Attributes attributes, std::vector<ValueId> outputs) {
    return editor_.place({&graph_.registry->get(op), like.name + suffix, std::move(attributes),
                          std::move(inputs), std::move(outputs), like.backward});
  }

  static ValueId output(const Node& node, size_t i) {
    return i < node.outputs.size() ? node.outputs[i] : 0;
  }

  // Returns the output; makes it if the node has none.
  ValueId statistic(const Node& node, size_t i, const char* suffix) {
    if (const ValueId id = output(node, i); id != 0) return id;
    return editor_.add_value(
        {node.name + suffix, ValueKind::kActivation, graph_.value(node.inputs[3]).desc});
  }

  Result<ValueId> joined(const Node& node, const char* suffix, ValueId rows) {
    OFSDP_ASSIGN_OR_RETURN(const auto made, editor_.add("ofsdp.JoinRows", node.name + suffix,
                                                        {rows}, ranks_.join(1), 1, node.backward));
    return made[0];
  }

  Status normalize(Node node) {
    const TensorDesc& running = graph_.value(node.inputs[3]).desc;
    OFSDP_REJECT_IF(running.dtype != DType::kFloat32 ||
                        graph_.value(node.inputs[4]).desc.dtype != DType::kFloat32,
                    "--sync-batch-norm on: {}: expected running statistics in float32, found {}",
                    graph_.describe(node), running.text());
    const ValueId mean = statistic(node, 3, ".mean"), variance = statistic(node, 4, ".variance");
    OFSDP_ASSIGN_OR_RETURN(const auto own,
                           editor_.add("ofsdp.ChannelStatistics", node.name + ".statistics",
                                       {node.inputs[0]}, {}, 1, node.backward));
    OFSDP_ASSIGN_OR_RETURN(const ValueId all, joined(node, ".rows", own[0]));
    OFSDP_RETURN_IF_ERROR(add("ofsdp.JoinedStatistics", node, ".joined",
                              {all, node.inputs[3], node.inputs[4]},
                              {{"momentum", node.attributes.f("momentum", 0.9f)}},
                              {mean, variance, output(node, 1), output(node, 2)}));
    statistics_[mean] = all;
    node.attributes.set("training_mode", int64_t{0});
    node.inputs[3] = mean;
    node.inputs[4] = variance;
    node.outputs.resize(1);
    return editor_.place(std::move(node));
  }

  Status differentiate(const Node& node) {
    const auto found = statistics_.find(node.inputs[3]);
    OFSDP_REJECT_IF(found == statistics_.end(),
                    "--sync-batch-norm on: {}: expected statistics that a BatchNormalization of "
                    "the graph makes, found none",
                    graph_.describe(node));
    const Attributes epsilon{{"epsilon", node.attributes.f("epsilon", 1e-5f)}};
    OFSDP_ASSIGN_OR_RETURN(const auto dots, editor_.add("ofsdp.ChannelDots", node.name + ".dots",
                                                        node.inputs, epsilon, 1, node.backward));
    Node summing = graph_.nodes.back();
    summing.outputs = {dots[0], output(node, 1), output(node, 2)};
    OFSDP_RETURN_IF_ERROR(editor_.change(graph_.nodes.back(), std::move(summing)));
    if (output(node, 0) == 0) return {};
    OFSDP_ASSIGN_OR_RETURN(const ValueId all, joined(node, ".rows", dots[0]));
    std::vector<ValueId> inputs = node.inputs;
    inputs.push_back(found->second);
    inputs.push_back(all);
    return add("ofsdp.JoinedNormalizationGrad", node, "", std::move(inputs), epsilon,
               {node.outputs[0]});
  }

  Graph& graph_;
  GraphEditor editor_;
  const RankRows& ranks_;
  std::map<ValueId, ValueId> statistics_;  // mean -> joined rows that it comes from
};

}  // namespace

Status synchronize_batch_norm(Graph& graph, const RankRows& ranks) {
  return ranks.several() ? Synchronization(graph, ranks).run() : ok_status();
}

}  // namespace ofsdp::importer
