// The bodies in standard operators against the references of the replaced operators, on the
// operators' own sample cases: both in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "importer/export/graph_model.h"
#include "kernels/core/op_def.h"
#include "tests/support/body_graph.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_check.h"
#include "tests/support/op_values.h"
#include "tests/support/samples.h"

namespace ofsdp {
namespace standard_body_test {

using testing::descs_of;
using testing::one_node;
using testing::OneNode;
using Tensors = std::vector<RefTensor>;

// The body's outputs on these inputs, by references.
Tensors evaluated(const Graph& body, const Tensors& inputs) {
  const auto values = testing::body_values(body, inputs);
  Tensors outputs;
  for (const ValueId id : body.outputs) outputs.push_back(values.at(id));
  return outputs;
}

void expect_same(const Tensors& found, const Tensors& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].desc.shape, expected[i].desc.shape) << "output " << i;
    double scale = 1;
    for (const double v : expected[i].values)
      scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
    for (size_t k = 0; k < found[i].values.size(); ++k) {
      if (!std::isfinite(expected[i].values[k])) continue;
      ASSERT_NEAR(found[i].values[k], expected[i].values[k], tolerance * scale)
          << "output " << i << " element " << k;
    }
  }
}

class StandardBodies : public ::testing::TestWithParam<std::string> {};

TEST_P(StandardBodies, AreTheirOperators) {
  if (GetParam() == "ofsdp.MaxPoolGrad") GTEST_SKIP() << "its winners are MaxPool's Indices there";
  const Registry registry = make_registry();
  const OpDef& op = registry.get(GetParam());
  for (const SampleCase& sample : testing::samples_of(op)) {
    SCOPED_TRACE(sample.name);
    const auto values = testing::make_values(sample);
    std::vector<bool> wanted(sample.num_outputs, true);
    auto descs = op.infer({sample.attributes, descs_of(values.inputs), values.constants, wanted});
    ASSERT_TRUE(descs.ok()) << descs.error().message();
    descs->resize(sample.num_outputs);
    const OneNode made = one_node(registry, GetParam(), sample.attributes, descs_of(values.inputs),
                                  *descs, values.constants);
    const auto body = standard_body_graph(made.graph, made.node);
    ASSERT_TRUE(body.ok()) << body.error().message();
    for (const Node& node : body->nodes) EXPECT_EQ(node.op->domain, "") << node.op->name;
    auto expected = op.reference(
        {sample.attributes, values.inputs, *descs, testing::kCheckNodeSeed, testing::check_step()});
    expected.resize(sample.num_outputs);
    // Constants in the body have the sample's type.
    const bool half =
        descs->at(0).dtype == DType::kFloat16 || descs->at(0).dtype == DType::kBFloat16;
    expect_same(evaluated(*body, values.inputs), expected, half ? 1e-2 : 1e-6);
  }
}

std::vector<std::string> names_with_body() {
  std::vector<std::string> names;
  const Registry registry = make_registry();
  for (const auto& [key, op] : registry.all()) {
    if (op.body != nullptr) names.push_back(op.full_name());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Operators, StandardBodies, ::testing::ValuesIn(names_with_body()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST(StandardBodyTest, MaxPoolGradTakesIndices) {
  const Registry registry = make_registry();
  const OpDef& pool = registry.get("MaxPool");
  const OpDef& grad = registry.get("ofsdp.MaxPoolGrad");
  for (const SampleCase& sample : testing::samples_of(pool)) {
    if (sample.inputs[0].dtype != DType::kFloat32 || sample.attributes.has("ofsdp_activation") ||
        sample.attributes.i("storage_order", 0) != 0) {
      continue;
    }
    SCOPED_TRACE(sample.name);
    const auto values = testing::make_values(sample);
    const auto descs =
        pool.infer({sample.attributes, descs_of(values.inputs), {}, {true, true, true}});
    ASSERT_TRUE(descs.ok());
    const auto forward = pool.reference({sample.attributes, values.inputs, *descs, 0, {}});
    Attributes attributes = sample.attributes;
    attributes.set("x_shape", values.inputs[0].desc.shape.axes());
    const std::vector<TensorDesc> dx{values.inputs[0].desc};
    const auto expected = grad.reference({attributes, {forward[0], forward[2]}, dx, 0, {}});
    const OneNode made =
        one_node(registry, "ofsdp.MaxPoolGrad", attributes, {forward[0].desc, forward[1].desc}, dx);
    const auto body = standard_body_graph(made.graph, made.node);
    ASSERT_TRUE(body.ok()) << body.error().message();
    expect_same(evaluated(*body, {forward[0], forward[1]}), expected, 1e-6);
  }
}

// The body replaces only such a node; others have kernels, and the samples cover these.
TEST(StandardBodyTest, FusedMatMulMovesTheBatch) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("com.microsoft.FusedMatMul");
  for (const int64_t transposed : {0, 1}) {
    const SampleCase sample{
        .name = "batch",
        .attributes = {{"transBatchA", int64_t{1}}, {"transA", transposed}, {"alpha", 0.5f}},
        .inputs = {{DType::kFloat32, transposed != 0 ? Shape{5, 2, 3} : Shape{3, 2, 5}},
                   {DType::kFloat32, {2, 5, 4}}}};
    ASSERT_TRUE(is_lowered(op, sample.attributes));
    const auto values = testing::make_values(sample);
    const auto descs = op.infer({sample.attributes, sample.inputs, values.constants, {true}});
    ASSERT_TRUE(descs.ok()) << descs.error().message();
    EXPECT_EQ(descs->at(0).shape, (Shape{2, 3, 4}));
    const OneNode made =
        one_node(registry, op.full_name(), sample.attributes, sample.inputs, *descs);
    const auto body = standard_body_graph(made.graph, made.node);
    ASSERT_TRUE(body.ok()) << body.error().message();
    expect_same(evaluated(*body, values.inputs),
                op.reference({sample.attributes, values.inputs, *descs, 0, {}}), 1e-6);
  }
  EXPECT_FALSE(is_lowered(op, {{"transA", int64_t{1}}}));
}

TEST(StandardBodyTest, AnOperatorWithoutOneIsNamed) {
  const Registry registry = make_registry();
  const TensorDesc desc{DType::kFloat32, {4}};
  const OneNode made = one_node(registry, "ofsdp.MishGrad", {}, {desc, desc}, {desc});
  const auto body = standard_body_graph(made.graph, made.node);
  ASSERT_FALSE(body.ok());
  EXPECT_NE(body.error().message().find("ofsdp.MishGrad"), std::string::npos);
}

}  // namespace standard_body_test
}  // namespace ofsdp
