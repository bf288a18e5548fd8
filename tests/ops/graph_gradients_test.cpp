// The gradient of every operator as nodes in a graph, on the sample cases: each pass from
// specialization to layouts leaves a right graph (importer/graph/verify.h). With AddressSanitizer a
// graph's lists move at every growth: a gradient's rule must keep no reference into them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importer/graph/verify.h"
#include "importer/passes/passes.h"
#include "importer/passes/specialize.h"
#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_values.h"
#include "tests/support/operator_names.h"
#include "tests/support/samples.h"

namespace ofsdp {
namespace graph_gradients_test {

// One node; floats are trained parameters, so that the graph needs gradients.
class OneNodeGraph {
 public:
  OneNodeGraph(const Registry& registry, const OpDef& op, const SampleCase& sample)
      : values_(testing::make_values(sample)), editor_(graph_) {
    graph_.file = "test.onnx";
    graph_.registry = &registry;
    Node node{&op, "node", sample.attributes, {}, {}};
    for (size_t i = 0; i < sample.inputs.size(); ++i) {
      node.inputs.push_back(operand(sample.inputs[i], values_.constants[i]));
    }
    for (size_t i = 0; i < sample.num_outputs; ++i) {
      node.outputs.push_back(
          editor_.add_value({format_text("y{}", i), ValueKind::kActivation, {}}));
    }
    graph_.outputs = node.outputs;
    graph_.nodes.push_back(std::move(node));
  }

  // The graph with gradients; the loss sums the means of all float outputs.
  Result<Graph> trained() {
    std::map<std::string, Shape> shapes;
    for (const ValueId id : graph_.inputs) {
      shapes[graph_.value(id).name] = graph_.value(id).desc.shape;
    }
    OFSDP_ASSIGN_OR_RETURN(
        graph_, checked("specialize", specialize(graph_, shapes, Mode::kTrain, nullptr)));
    for (const ValueId id : graph_.outputs) {
      if (is_floating(graph_.value(id).desc.dtype)) OFSDP_RETURN_IF_ERROR(add_term(id));
    }
    if (!graph_.has_loss()) return graph_;
    OFSDP_ASSIGN_OR_RETURN(const Graph graph, checked("autodiff", autodiff(graph_)));
    return checked("assign_layouts", assign_layouts(graph));
  }

 private:
  ValueId operand(const TensorDesc& desc, const ConstantPtr& known) {
    if (!desc.present()) return 0;
    const std::string name = format_text("x{}", graph_.values.size());
    if (known != nullptr) return editor_.add_constant(name, known);
    const bool trained = is_floating(desc.dtype);
    const ValueId id =
        editor_.add_value({name, trained ? ValueKind::kParameter : ValueKind::kInput, desc});
    if (trained) {
      const auto index = static_cast<int>(graph_.parameters.size());
      graph_.parameters.push_back({name, id, index, true, false, {}});
    } else {
      graph_.inputs.push_back(id);
    }
    return id;
  }

  Status add_term(ValueId id) {
    OFSDP_ASSIGN_OR_RETURN(
        const ValueId wide,
        editor_.add1("Cast", "wide", {id}, {{"to", onnx_number(DType::kFloat32)}}));
    OFSDP_ASSIGN_OR_RETURN(const ValueId mean,
                           editor_.add1("ReduceMean", "mean", {wide}, {{"keepdims", int64_t{0}}}));
    if (!graph_.has_loss()) {
      graph_.terms = {{mean}};
      return {};
    }
    ValueId& loss = graph_.terms[0].value;
    OFSDP_ASSIGN_OR_RETURN(loss, editor_.add1("Add", "sum", {loss, mean}));
    return {};
  }

  testing::CaseValues values_;
  Graph graph_;
  GraphEditor editor_;
};

class GraphGradients : public ::testing::TestWithParam<std::string> {};

TEST_P(GraphGradients, AreRightGraphs) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get(GetParam());
  for (const SampleCase& sample : testing::samples_of(op)) {
    if (!sample.check_grad) continue;
    const auto made = OneNodeGraph(registry, op, sample).trained();
    EXPECT_TRUE(made.ok()) << sample.name << ": " << made.error().message();
  }
}

std::vector<std::string> with_gradients() {
  return operator_names([](const OpDef& op) { return op.grad != nullptr || is_composite(op); });
}

INSTANTIATE_TEST_SUITE_P(Operators, GraphGradients, ::testing::ValuesIn(with_gradients()),
                         operator_test_name);

}  // namespace graph_gradients_test
}  // namespace ofsdp
