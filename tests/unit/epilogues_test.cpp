// join_epilogues on small graphs: which nodes become one, and which stay apart.
// tests/procs/device/device_test.cpp compares the values, bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importer/passes/joined_nodes.h"
#include "importer/passes/passes.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace epilogues_test {

using ::testing::ElementsAre;
using testing::GraphMaker;
using testing::operators;

const Attributes kTransposed{{"transB", int64_t{1}}};
const Attributes kTanh{{"approximate", std::string("tanh")}};

bool always(const Graph&, const Node&) { return true; }

class Epilogues : public ::testing::Test {
 protected:
  ValueId linear(const std::string& name, ValueId x, int64_t from, int64_t to) {
    const ValueId w = maker.parameter(name + ".weight", {to, from});
    return maker.node("Gemm", name, {x, w, maker.parameter(name + ".bias", {to})}, kTransposed);
  }

  // [2, 3, width]
  ValueId whole(const std::string& name, ValueId rows, int64_t width) {
    return maker.node("Reshape", name, {rows, maker.ints({2, 3, width})});
  }

  Graph trained(ValueId prediction) {
    const ValueId target =
        maker.input("target", {DType::kFloat32, maker.graph.value(prediction).desc.shape});
    maker.graph.terms = {{maker.node("ofsdp.MseLoss", "loss", {prediction, target})}};
    return *autodiff(maker.graph);
  }

  static const Node& node(const Graph& graph, const std::string& name) {
    for (const Node& node : graph.nodes) {
      if (node.name == name) return node;
    }
    ADD_FAILURE() << "no node " << name;
    return graph.nodes[0];
  }

  // Every operand exists before it is read, and nothing is made twice.
  static void expect_ordered(const Graph& graph) {
    std::set<ValueId> made{0};
    for (const Node& n : graph.nodes) {
      for (ValueId id : n.inputs) {
        const bool there = graph.value(id).kind != ValueKind::kActivation || made.contains(id);
        EXPECT_TRUE(there) << n.name << " reads " << graph.value(id).name;
      }
      for (ValueId id : n.outputs) {
        EXPECT_TRUE(id == 0 || made.insert(id).second) << n.name;
      }
      const auto descs = infer_outputs(graph, n);
      ASSERT_TRUE(descs.ok()) << n.name << ": " << descs.error().message();
      for (size_t i = 0; i < n.outputs.size(); ++i) {
        const ValueId id = n.outputs[i];
        EXPECT_TRUE(id == 0 || (*descs)[i] == graph.value(id).desc) << n.name;
      }
    }
  }

  Registry registry = make_registry();
  GraphMaker maker{registry};
};

// A transformer's feed-forward part: x + fc2(gelu(fc1(x))), with rows of three axes outside.
TEST_F(Epilogues, AFeedForwardBlockIsTwoProductsForwardsAndFourBackwards) {
  const ValueId x = whole("x3", linear("in", maker.input("x", {DType::kFloat32, {6, 8}}), 8, 8), 8);
  const ValueId h =
      whole("h3", linear("fc1", maker.node("ofsdp.CollapseLeading", "rows", {x}), 8, 16), 16);
  const ValueId g = maker.node("Gelu", "gelu", {h}, kTanh);
  const ValueId y =
      whole("y3", linear("fc2", maker.node("ofsdp.CollapseLeading", "g2", {g}), 16, 8), 8);
  const Graph before = trained(maker.node("Add", "sum", {x, y}));
  const Graph graph = join_epilogues(before, always);
  expect_ordered(graph);
  std::vector<std::string> left;
  for (const std::string& op : operators(graph)) {
    if (!registry.get(op).view) left.push_back(op);
  }
  const std::string joined = "ofsdp.GemmEpilogue";
  EXPECT_THAT(left, ElementsAre("Gemm", joined, joined, "ofsdp.MseLoss", "ofsdp.MseLossGrad",
                                joined, joined, joined, joined, joined));
  const Node& fc1 = node(graph, "fc1");
  EXPECT_EQ(fc1.attributes.s("activation", ""), "gelu_tanh");
  EXPECT_EQ(fc1.outputs.size(), 2u) << "the gradient reads what goes into gelu";
  EXPECT_EQ(node(graph, "fc2").inputs.size(), 4u) << "the residual is its addend";
  for (const Parameter& p : graph.parameters) {
    const bool made = std::ranges::any_of(graph.nodes, [&](const Node& n) {
      return !n.op->view && std::ranges::count(n.outputs, p.gradient) == 1;
    });
    EXPECT_TRUE(made) << p.name << ": its gradient must be written by a node that is no view";
  }
  // Forward: gelu and the residual; backward: gelu, the sum of x's gradients, three bias gradients.
  EXPECT_EQ(graph.fused.at("epilogue"), 7);
}

TEST_F(Epilogues, WhatTheDeviceDoesNotTakeStaysApart) {
  const ValueId x = maker.input("x", {DType::kFloat32, {6, 8}});
  const ValueId y = maker.node("Gelu", "gelu", {linear("fc", x, 8, 8)}, kTanh);
  const Graph before = trained(maker.node("Add", "sum", {y, linear("last", y, 8, 8)}));
  const Graph none = join_epilogues(before, [](const Graph&, const Node&) { return false; });
  EXPECT_EQ(text(none), text(before));
  const Graph some = join_epilogues(
      before, [](const Graph&, const Node& n) { return n.attributes.s("activation", "").empty(); });
  expect_ordered(some);
  EXPECT_THAT(operators(some), ::testing::Contains("Gelu"));
  EXPECT_EQ(node(some, "last").inputs.size(), 4u);
}

TEST_F(Epilogues, AProductThatOthersReadStaysAProduct) {
  const ValueId x = maker.input("x", {DType::kFloat32, {6, 8}});
  const ValueId p = linear("fc", x, 8, 8);
  const ValueId sum = maker.node("Add", "sum", {x, p});
  maker.graph.outputs = {maker.node("Mul", "product", {sum, p})};
  EXPECT_THAT(operators(join_epilogues(maker.graph, always)), ElementsAre("Gemm", "Add", "Mul"));
}

TEST_F(Epilogues, AnAddendThatComesLaterOrIsBroadcastStays) {
  const ValueId x = maker.input("x", {DType::kFloat32, {6, 8}});
  const ValueId p = linear("fc", x, 8, 8);
  const ValueId late = maker.node("Add", "late", {maker.node("Exp", "exp", {x}), p});
  const ValueId q = linear("other", late, 8, 8);
  const ValueId one = maker.input("one", {DType::kFloat32, {1, 8}});
  maker.graph.outputs = {maker.node("Add", "row", {q, one})};
  EXPECT_THAT(operators(join_epilogues(maker.graph, always)),
              ElementsAre("Gemm", "Exp", "Add", "Gemm", "Add"));
}

TEST_F(Epilogues, TheOtherGeluReluAndAScaledProductStay) {
  const ValueId x = maker.input("x", {DType::kFloat32, {6, 8}});
  const ValueId g = maker.node("Gelu", "gelu", {linear("fc1", x, 8, 8)});
  const ValueId r = maker.node("Relu", "relu", {linear("fc2", g, 8, 8)});
  const ValueId w = maker.parameter("w", {8, 8});
  const ValueId c = maker.input("c", {DType::kFloat32, {6, 1}});
  const Attributes scaled{{"beta", 0.5f}};
  maker.graph.outputs = {
      maker.node("Gelu", "last", {maker.node("Gemm", "fc3", {r, w, c}, scaled)}, kTanh)};
  EXPECT_THAT(operators(join_epilogues(maker.graph, always)),
              ElementsAre("Gemm", "Gelu", "Gemm", "Relu", "Gemm", "Gelu"));
}

// A value with several readers: products sum all the gradients in place of Adds.
TEST_F(Epilogues, GradientsOfSeveralReadersBecomeAddends) {
  const ValueId x = linear("in", maker.input("x", {DType::kFloat32, {6, 8}}), 8, 8);
  const ValueId q = linear("q", x, 8, 8), k = linear("k", x, 8, 8), v = linear("v", x, 8, 8);
  const ValueId qk = maker.node("Mul", "qk", {q, k});
  const Graph graph = join_epilogues(trained(maker.node("Mul", "qkv", {qk, v})), always);
  expect_ordered(graph);
  EXPECT_THAT(operators(graph), ::testing::Not(::testing::Contains("Add")));
  EXPECT_THAT(operators(graph), ::testing::Not(::testing::Contains("ofsdp.SumTo")));
  EXPECT_EQ(graph.fused.at("epilogue"), 2 + 4);
}

// The same with rows of three axes, which each product reads as a matrix, and a residual. The view
// of a sum takes the sum's place, after the products that add it.
TEST_F(Epilogues, SeveralReadersOfThreeAxesToo) {
  const ValueId x = whole("x3", linear("in", maker.input("x", {DType::kFloat32, {6, 8}}), 8, 8), 8);
  const auto read = [&](const std::string& name) {
    const ValueId rows = maker.node("ofsdp.CollapseLeading", name + ".rows", {x});
    return whole(name + "3", linear(name, rows, 8, 8), 8);
  };
  const ValueId q = read("q"), k = read("k"), v = read("v");
  const ValueId qkv = maker.node("Mul", "qkv", {maker.node("Mul", "qk", {q, k}), v});
  const Graph graph = join_epilogues(trained(maker.node("Add", "sum", {x, qkv})), always);
  expect_ordered(graph);
  const auto adds = std::ranges::count(operators(graph), "Add");
  EXPECT_EQ(adds, 1) << "of the forward alone";
  EXPECT_EQ(graph.fused.at("epilogue"), 3 + 4);
}

}  // namespace epilogues_test
}  // namespace ofsdp
