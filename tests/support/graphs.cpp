#include "tests/support/graphs.h"

#include "importer/passes/loss.h"
#include "importer/passes/passes.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {

GraphMaker::GraphMaker(const Registry& registry) {
  graph.file = "test.onnx";
  graph.registry = &registry;
}

ValueId GraphMaker::input(const std::string& name, TensorDesc desc) {
  Value value{name, ValueKind::kInput, desc};
  for (int64_t axis : desc.shape.axes()) value.declared.push_back({axis, ""});
  graph.inputs.push_back(GraphEditor(graph).add_value(value));
  return graph.inputs.back();
}

ValueId GraphMaker::parameter(const std::string& name, Shape shape, bool trained) {
  const ValueId id = GraphEditor(graph).add_value(
      {name, ValueKind::kParameter, {DType::kFloat32, std::move(shape)}});
  const int index = static_cast<int>(graph.parameters.size());
  graph.parameters.push_back({name, id, index, trained, false, {}});
  graph.initializers.push_back(name);
  return id;
}

ValueId GraphMaker::ints(const std::vector<int64_t>& values) {
  const Shape shape{static_cast<int64_t>(values.size())};
  return GraphEditor(graph).add_constant("ints",
                                         make_constant<int64_t>(DType::kInt64, shape, values));
}

ValueId GraphMaker::node(const std::string& op, const std::string& name,
                         const std::vector<ValueId>& inputs, const Attributes& attributes) {
  auto made = GraphEditor(graph).add1(op, name, inputs, attributes);
  OFSDP_CHECK(made.ok(), "{}", made.error().message());
  return *made;
}

Graph mlp_training_graph(const Registry& registry, int64_t batch,
                         const std::vector<int64_t>& widths) {
  GraphMaker maker(registry);
  ValueId x = maker.input("x", {DType::kFloat32, {batch, widths[0]}});
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string n = std::to_string(i);
    const ValueId w = maker.parameter("w" + n, {widths[i + 1], widths[i]});
    const ValueId b = maker.parameter("b" + n, {widths[i + 1]});
    x = maker.node("Gemm", "fc" + n, {x, w, b}, {{"transB", int64_t{1}}});
    if (i + 2 < widths.size()) x = maker.node("Relu", "relu" + n, {x});
  }
  maker.graph.outputs = {x};
  LossSpec loss;
  loss.kind = LossKind::kCrossEntropy;
  loss.prediction = maker.graph.value(x).name;
  loss.labels = "labels";
  return *autodiff(*attach_loss(maker.graph, loss, {batch}, false));
}

std::vector<std::string> operators(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.op->full_name());
  return names;
}

}  // namespace ofsdp::testing
