// keep_attention_statistics on small graphs: which forward node keeps them, the operands of the
// gradient, and the graphs that stay unchanged. tests/procs/device/device_test.cpp compares values
// bit by bit, tests/procs/device/emulated_device_test.cpp on the kernels of devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/plan/plan.h"
#include "importer/passes/joined_nodes.h"
#include "importer/passes/passes.h"
#include "kernels/core/planned_operands.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace attention_statistics_test {

using testing::GraphMaker;
using testing::operators;

constexpr auto kKeeping = "ofsdp.AttentionWithStatistics", kGradient = "ofsdp.AttentionGrad";

bool always(const Graph&, const Node&) { return true; }

class AttentionStatistics : public ::testing::Test {
 protected:
  AttentionStatistics() { x = maker.input("x", {DType::kFloat32, {2, 3, 8}}); }

  // [2, 2, 3, 4] from [2, 3, 8]
  ValueId heads(const std::string& name) {
    const ValueId rows = maker.node("MatMul", name, {x, maker.parameter("w" + name, {8, 8})});
    const ValueId split = maker.node("Reshape", name + "4", {rows, maker.ints({2, 3, 2, 4})});
    return maker.node("Transpose", name + "t", {split}, kSwap);
  }

  // Attention as exporters write it, followed by the projection.
  ValueId block(ValueId y, bool trained = true) {
    const ValueId t = maker.node("Transpose", "yt", {y}, kSwap);
    const ValueId rows = maker.node("Reshape", "y3", {t, maker.ints({2, 3, 8})});
    return maker.node("MatMul", "o", {rows, maker.parameter("wo", {8, 8}, trained)});
  }

  Graph trained(ValueId prediction) {
    const ValueId target =
        maker.input("target", {DType::kFloat32, maker.graph.value(prediction).desc.shape});
    maker.graph.terms = {{maker.node("ofsdp.MseLoss", "loss", {prediction, target})}};
    return *autodiff(maker.graph);
  }

  static std::vector<const Node*> nodes(const Graph& graph, const std::string& op) {
    std::vector<const Node*> found;
    for (const Node& node : graph.nodes) {
      if (node.op->full_name() == op) found.push_back(&node);
    }
    return found;
  }

  // Every operand is made before it is read, and descs agree with the operators.
  static void expect_sound(const Graph& graph) {
    std::set<ValueId> made{0};
    for (const Node& n : graph.nodes) {
      for (ValueId id : n.inputs) {
        const bool there = graph.value(id).kind != ValueKind::kActivation || made.contains(id);
        EXPECT_TRUE(there) << n.name << " reads " << graph.value(id).name;
      }
      made.insert(n.outputs.begin(), n.outputs.end());
      const auto descs = infer_outputs(graph, n);
      ASSERT_TRUE(descs.ok()) << n.name << ": " << descs.error().message();
      for (size_t i = 0; i < n.outputs.size(); ++i) {
        const ValueId id = n.outputs[i];
        EXPECT_TRUE(id == 0 || (*descs)[i] == graph.value(id).desc) << n.name;
      }
    }
  }

  static void expect_unchanged(const Graph& before, const TakesNode& takes = always) {
    const Graph after = keep_attention_statistics(before, takes);
    EXPECT_EQ(text(after), text(before));
    EXPECT_EQ(after.values.size(), before.values.size());
  }

  static Graph recomputed(const Graph& graph, SegmentRecompute how) {
    return recompute(graph, {{1, 0, forward_end(graph) - 2}}, {how});
  }

  const Attributes kSwap{{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  Registry registry = make_registry();
  GraphMaker maker{registry};
  ValueId x = 0;
};

TEST_F(AttentionStatistics, TheGradientReadsThemAndWhatIsKeptForTheProjection) {
  const ValueId y = maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")});
  const Graph before = trained(block(y));
  const Graph graph = keep_attention_statistics(before, always);
  expect_sound(graph);
  EXPECT_TRUE(nodes(graph, "Attention").empty());
  const Node &keeping = *nodes(graph, kKeeping).at(0), &gradient = *nodes(graph, kGradient).at(0);
  EXPECT_EQ(keeping.inputs.size(), 3u);
  ASSERT_EQ(gradient.inputs.size(), 8u);
  EXPECT_EQ(graph.value(keeping.outputs[1]).desc, (TensorDesc{DType::kFloat32, {2, 2, 3}}));
  EXPECT_EQ(gradient.inputs[7], keeping.outputs[1]);
  EXPECT_EQ(gradient.inputs[6], graph.find("yt")) << "the transposed Y is what backward has";
  EXPECT_EQ(gradient.attributes.ints("y_perm"), (std::vector<int64_t>{0, 2, 1, 3}));
  EXPECT_EQ(graph.values.size(), before.values.size() + 1);
  EXPECT_EQ(graph.fused.at("statistics"), 1);
}

TEST_F(AttentionStatistics, AYThatAttentionWritesTransposedIsWhatBackwardHas) {
  Attributes attributes;
  attributes.set(kResultPerm, std::vector<int64_t>{0, 2, 1, 3});
  const ValueId y = maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")}, attributes);
  ASSERT_EQ(maker.graph.value(y).desc.shape, (Shape{2, 3, 2, 4}));
  const ValueId rows = maker.node("Reshape", "y3", {y, maker.ints({2, 3, 8})});
  const ValueId again = maker.node("Transpose", "again", {y}, kSwap);
  const ValueId o = maker.node("MatMul", "o", {rows, maker.parameter("wo", {8, 8})});
  const ValueId other = maker.node("Mul", "m", {again, maker.parameter("scale", {2, 2, 3, 4})});
  const ValueId flat = maker.node("Reshape", "flat", {other, maker.ints({2, 3, 8})});
  const Graph graph =
      keep_attention_statistics(trained(maker.node("Add", "both", {o, flat})), always);
  expect_sound(graph);
  const Node& gradient = *nodes(graph, kGradient).at(0);
  EXPECT_EQ(gradient.inputs.at(6), y) << "a y_perm would be that of [batch, heads, ...]";
  EXPECT_FALSE(gradient.attributes.has("y_perm"));
  EXPECT_TRUE(gradient.attributes.has(kResultPerm));
}

// As in torch.nn.MultiheadAttention, with rows [queries, batch].
TEST_F(AttentionStatistics, AnyTransposeThatLeavesTheColumnsWillDo) {
  const ValueId y = maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")});
  const Attributes perm{{"perm", std::vector<int64_t>{2, 0, 1, 3}}};
  const ValueId rows =
      maker.node("Reshape", "y2", {maker.node("Transpose", "yt", {y}, perm), maker.ints({6, 8})});
  const ValueId o = maker.node("Gemm", "o", {rows, maker.parameter("wo", {8, 8})});
  const Graph graph = keep_attention_statistics(trained(o), always);
  expect_sound(graph);
  const Node& gradient = *nodes(graph, kGradient).at(0);
  EXPECT_EQ(gradient.inputs.at(6), graph.find("yt"));
  EXPECT_EQ(gradient.attributes.ints("y_perm"), (std::vector<int64_t>{2, 0, 1, 3}));
}

TEST_F(AttentionStatistics, AYThatBackwardReadsItselfIsReadAsItIs) {
  const Attributes causal{{"is_causal", int64_t{1}}};
  const ValueId mask = maker.input("mask", {DType::kFloat32, {3, 3}});
  const ValueId y =
      maker.node("Attention", "a", {heads("q"), heads("k"), heads("v"), mask}, causal);
  const Graph graph = keep_attention_statistics(
      trained(maker.node("Mul", "m", {y, maker.parameter("scale", {2, 2, 3, 4})})), always);
  expect_sound(graph);
  const Node &keeping = *nodes(graph, kKeeping).at(0), &gradient = *nodes(graph, kGradient).at(0);
  EXPECT_EQ(keeping.inputs.at(3), mask);
  EXPECT_EQ(gradient.inputs.at(6), y);
  EXPECT_FALSE(gradient.attributes.has("y_perm"));
}

// As in GPT-2: one product gives all heads in a row, queries first, then keys, then values.
TEST_F(AttentionStatistics, KeysAndValuesMayLieInTheTensorOfQueries) {
  constexpr int64_t kHeads = 2, kRows = 3, kWidth = 4, kRow = 3 * kHeads * kWidth;
  Attributes attributes;
  int64_t first = 0;
  for (const char* name : {kQueryLayout, kKeyLayout, kValueLayout}) {
    attributes.set(name, to_attribute(HeadLayout{
                             2, kHeads, kRows, kWidth, {kRows * kRow, kWidth, kRow, first}}));
    first += kHeads * kWidth;
  }
  attributes.set(kResultPerm, std::vector<int64_t>{0, 2, 1, 3});
  const ValueId all = maker.node("MatMul", "qkv", {x, maker.parameter("wqkv", {8, kRow})});
  const ValueId y = maker.node("Attention", "a", {all}, attributes);
  const ValueId rows = maker.node("Reshape", "y3", {y, maker.ints({2, 3, 8})});
  const ValueId o = maker.node("MatMul", "o", {rows, maker.parameter("wo", {8, 8})});
  const Graph graph = keep_attention_statistics(trained(o), always);
  expect_sound(graph);
  ASSERT_EQ(nodes(graph, kKeeping).size(), 1u);
  EXPECT_EQ(nodes(graph, kKeeping).at(0)->inputs, std::vector<ValueId>{all});
  EXPECT_EQ(nodes(graph, kGradient).at(0)->inputs.at(7),
            nodes(graph, kKeeping).at(0)->outputs.at(1));
}

TEST_F(AttentionStatistics, LengthsComeBehindTheMask) {
  const ValueId lengths = maker.input("lengths", {DType::kInt64, {2}});
  const ValueId y =
      maker.node("Attention", "a", {heads("q"), heads("k"), heads("v"), 0, 0, 0, lengths});
  const Graph graph = keep_attention_statistics(trained(block(y)), always);
  expect_sound(graph);
  EXPECT_EQ(nodes(graph, kKeeping).at(0)->inputs.at(4), lengths);
  EXPECT_EQ(nodes(graph, kGradient).at(0)->inputs.at(5), lengths);
}

// With a frozen projection Y is not kept: only its row sums would be needed.
TEST_F(AttentionStatistics, NothingBigIsKeptForThem) {
  const ValueId y = maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")});
  expect_unchanged(trained(block(y, false)));
}

TEST_F(AttentionStatistics, WithoutAGradientNothingIsKept) {
  maker.graph.outputs = {block(maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")}))};
  expect_unchanged(maker.graph);
}

TEST_F(AttentionStatistics, WhatTheDeviceDoesNotTakeStays) {
  const ValueId y = maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")});
  const Graph before = trained(block(y));
  for (const char* refused : {kKeeping, kGradient}) {
    expect_unchanged(before,
                     [&](const Graph&, const Node& n) { return n.op->full_name() != refused; });
  }
}

// A node that keeps statistics takes no cache.
TEST_F(AttentionStatistics, AttentionWithCachedKeysStays) {
  const ValueId past = maker.input("past", {DType::kFloat32, {2, 2, 5, 4}});
  const ValueId y =
      maker.node("Attention", "a", {heads("q"), heads("k"), heads("v"), 0, past, past});
  expect_unchanged(trained(block(y)));
}

TEST_F(AttentionStatistics, EachGradientReadsThoseOfItsOwnForwardNode) {
  const ValueId q = heads("q"), k = heads("k"), v = heads("v");
  const Attributes causal{{"is_causal", int64_t{1}}};
  const ValueId first = maker.node("Attention", "a", {q, k, v}, causal);
  const ValueId second = maker.node("Attention", "b", {q, k, v});
  const Graph graph =
      keep_attention_statistics(trained(maker.node("Mul", "m", {first, second})), always);
  expect_sound(graph);
  EXPECT_EQ(graph.fused.at("statistics"), 2);
  for (const Node* gradient : nodes(graph, kGradient)) {
    for (const Node* keeping : nodes(graph, kKeeping)) {
      const bool own = gradient->inputs.at(6) == keeping->outputs[0];
      EXPECT_EQ(gradient->inputs.at(7) == keeping->outputs[1], own);
      EXPECT_EQ(gradient->attributes.i("is_causal", 0) == keeping->attributes.i("is_causal", 0),
                own);
    }
  }
}

TEST_F(AttentionStatistics, OfARecomputedBlockTheCloneKeepsThem) {
  const ValueId y = maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")});
  const Graph graph =
      keep_attention_statistics(recomputed(trained(block(y)), SegmentRecompute::kAll), always);
  expect_sound(graph);
  EXPECT_EQ(nodes(graph, "Attention").size(), 1u) << "the forward pass keeps nothing";
  const Node &keeping = *nodes(graph, kKeeping).at(0), &gradient = *nodes(graph, kGradient).at(0);
  EXPECT_TRUE(keeping.backward);
  EXPECT_EQ(gradient.inputs.at(7), keeping.outputs[1]);
  EXPECT_NE(gradient.inputs.at(6), graph.find("yt")) << "the clone of the transposed Y";
  EXPECT_EQ(graph.value(gradient.inputs[6]).name, "yt");
}

// Cheap nodes are made again around a kept Attention: its gradient reads clones of Q, K and
// V.
TEST_F(AttentionStatistics, OfCheapRecomputationTheForwardNodeKeepsThem) {
  const ValueId y = maker.node("Attention", "a", {heads("q"), heads("k"), heads("v")});
  const Graph graph =
      keep_attention_statistics(recomputed(trained(block(y)), SegmentRecompute::kCheap), always);
  expect_sound(graph);
  const Node &keeping = *nodes(graph, kKeeping).at(0), &gradient = *nodes(graph, kGradient).at(0);
  EXPECT_FALSE(keeping.backward);
  EXPECT_NE(gradient.inputs[1], keeping.inputs[0]);
  EXPECT_EQ(gradient.inputs.at(7), keeping.outputs[1]);
  EXPECT_EQ(graph.value(gradient.inputs.at(6)).name, "yt");
}

}  // namespace attention_statistics_test
}  // namespace ofsdp
