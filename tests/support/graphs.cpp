#include "tests/support/graphs.h"

#include "importer/autodiff.h"
#include "importer/loss.h"

namespace ofsdp::testing {
namespace {

ValueId parameter(Graph& graph, const std::string& name, Shape shape) {
  const ValueId id = GraphEditor(graph).add_value(
      {name, ValueKind::kParameter, {DType::kFloat32, std::move(shape)}});
  graph.parameters.push_back({name, id, static_cast<int>(graph.parameters.size()), true, {}});
  return id;
}

}  // namespace

Graph mlp_training_graph(const Registry& registry, int64_t batch,
                         const std::vector<int64_t>& widths) {
  Graph graph;
  graph.file = "mlp";
  graph.registry = &registry;
  GraphEditor editor(graph);
  ValueId x = editor.add_value({"x", ValueKind::kInput, {DType::kFloat32, {batch, widths[0]}}});
  graph.inputs = {x};
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string n = std::to_string(i);
    const ValueId w = parameter(graph, "w" + n, {widths[i + 1], widths[i]});
    const ValueId b = parameter(graph, "b" + n, {widths[i + 1]});
    x = *editor.add1("Gemm", "fc" + n, {x, w, b}, {{"transB", int64_t{1}}});
    if (i + 2 < widths.size()) x = *editor.add1("Relu", "relu" + n, {x});
  }
  graph.outputs = {x};
  LossSpec loss;
  loss.kind = LossKind::kCrossEntropy;
  loss.prediction = graph.value(x).name;
  loss.labels = "labels";
  return *autodiff(*attach_loss(graph, loss, {batch}, false));
}

}  // namespace ofsdp::testing
