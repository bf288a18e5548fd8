// Attention that reads heads where products left them: the copies that go away in the exporters'
// spellings, the same bits of loss and gradients either way, and the graphs that stay unchanged.
#include "tests/support/fusion_fixture.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace fusion_heads_test {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;
using testing::operators;

class FusionHeads : public testing::Fusion {
 protected:
  static constexpr int64_t kBatch = 2, kRows = 5, kHeads = 4, kWidth = 6;
  static constexpr int64_t kColumns = kHeads * kWidth;

  // [batch rows, columns], as a product writes it.
  ValueId product(const std::string& name, int64_t columns = kColumns) {
    const ValueId x = maker.parameter("x" + name, {kBatch * kRows, 3});
    return op("MatMul", {x, maker.parameter("w" + name, {3, columns})});
  }
  ValueId reshaped(ValueId x, const std::vector<int64_t>& shape) {
    return op("Reshape", {x, maker.ints(shape)});
  }
  ValueId transposed(ValueId x, const std::vector<int64_t>& perm) {
    return op("Transpose", {x}, {{"perm", perm}});
  }
  // [batch, heads, rows, width] from [batch rows, heads width].
  ValueId heads(ValueId x, int64_t count = kHeads) {
    return transposed(reshaped(x, {kBatch, kRows, count, kWidth}), kSwap);
  }
  ValueId projected(ValueId y, const std::vector<int64_t>& perm = kSwap) {
    const ValueId rows = reshaped(transposed(y, perm), {kBatch * kRows, kColumns});
    return op("MatMul", {rows, maker.parameter("wo", {kColumns, 3})});
  }

  // Loss and gradients have the same bits, and forward and backward still have `left` nodes of each
  // operator.
  void expect_left(ValueId result, const std::set<std::string>& rules,
                   const std::map<std::string, int>& left) {
    expect_same(result, rules, 0);
    const Graph graph = *autodiff(fuse(maker.graph, {maker.graph.terms[0].value}));
    std::map<std::string, int> found;
    for (const std::string& name : operators(graph)) {
      if (name == "Transpose" || name == "Split" || name == "Concat") ++found[name];
    }
    EXPECT_EQ(found, left) << text(graph);
  }

  const Attributes causal{{"is_causal", int64_t{1}}};
  inline static const std::vector<int64_t> kSwap{0, 2, 1, 3};
  inline static const std::set<std::string> kBoth{"attention_operands", "attention_result"};
};

TEST_F(FusionHeads, ThreeProductsAndAMask) {
  const ValueId mask = maker.input("mask", {DType::kFloat32, {kBatch, 1, 1, kRows}});
  const ValueId q = heads(product("q")), k = heads(product("k")), v = heads(product("v"));
  const ValueId y = op("Attention", {q, k, v, mask});
  expect_left(projected(reshaped(y, {kBatch, kHeads, kRows, kWidth})), kBoth, {});
}

TEST_F(FusionHeads, OneProductInThreeParts) {
  const ValueId rows = reshaped(product("qkv", 3 * kColumns), {kBatch, kRows, 3 * kColumns});
  const auto parts = ops("Split", {rows}, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{3}}}, 3);
  const ValueId y = op("Attention", {heads(parts[0]), heads(parts[1]), heads(parts[2])}, causal);
  expect_left(projected(y), kBoth, {});
}

TEST_F(FusionHeads, GroupedHeadsInThreePartsOfDifferentSize) {
  const ValueId rows = product("qkv", 2 * kColumns);
  const ValueId sizes = maker.ints({kColumns, kColumns / 2, kColumns / 2});
  const auto parts = ops("Split", {rows, sizes}, {{"axis", int64_t{1}}}, 3);
  const ValueId y =
      op("Attention", {heads(parts[0]), heads(parts[1], kHeads / 2), heads(parts[2], kHeads / 2)});
  expect_left(projected(y), kBoth, {});
}

// As timm writes it: a Transpose of five axes, and then the Split.
TEST_F(FusionHeads, PartsBehindATranspose) {
  const ValueId all = reshaped(product("qkv", 3 * kColumns), {kBatch, kRows, 3, kHeads, kWidth});
  const auto parts = ops("Split", {transposed(all, {2, 0, 3, 1, 4})},
                         {{"axis", int64_t{0}}, {"num_outputs", int64_t{3}}}, 3);
  std::vector<ValueId> qkv;
  for (ValueId part : parts) qkv.push_back(op("Squeeze", {part, maker.ints({0})}));
  expect_left(projected(op("Attention", qkv)), kBoth, {});
}

// As in GPT-NeoX: each head's three parts side by side.
TEST_F(FusionHeads, PartsOfEachHead) {
  const ValueId all = reshaped(product("qkv", 3 * kColumns), {kBatch, kRows, kHeads, 3 * kWidth});
  const auto parts = ops("Split", {transposed(all, kSwap)},
                         {{"axis", int64_t{3}}, {"num_outputs", int64_t{3}}}, 3);
  expect_left(projected(op("Attention", parts, causal)), kBoth, {});
}

// As in torch.nn.MultiheadAttention: rows are [rows, batch], heads and samples one axis.
TEST_F(FusionHeads, SamplesInsideOfRows) {
  const auto inner = [&](const std::string& name) {
    const ValueId x = reshaped(product(name), {kRows, kBatch * kHeads, kWidth});
    return reshaped(transposed(x, {1, 0, 2}), {kBatch, kHeads, kRows, kWidth});
  };
  const ValueId y = op("Attention", {inner("q"), inner("k"), inner("v")});
  expect_left(projected(y, {2, 0, 1, 3}), kBoth, {});
}

TEST_F(FusionHeads, AttentionFromItsPieces) {
  const ValueId rows = product("qkv", 3 * kColumns);
  const auto parts = ops("Split", {rows}, {{"axis", int64_t{1}}, {"num_outputs", int64_t{3}}}, 3);
  const ValueId k = reshaped(parts[1], {kBatch, kRows, kHeads, kWidth});
  const ValueId s = op("MatMul", {heads(parts[0]), transposed(k, {0, 2, 3, 1})});
  const ValueId p = op("Softmax", {op("Div", {s, number(std::sqrt(6.0))})});
  const ValueId y = op("MatMul", {p, heads(parts[2])});
  expect_same(projected(y), {"attention", "attention_operands", "attention_result"});
  const Graph graph = *autodiff(fuse(maker.graph, {maker.graph.terms[0].value}));
  EXPECT_THAT(operators(graph), Not(Contains("Transpose"))) << text(graph);
  EXPECT_THAT(operators(graph), Not(Contains("Split"))) << text(graph);
}

// A rotation needs the copy before it; V needs none.
TEST_F(FusionHeads, WhatIsRotatedIsReadAsItIs) {
  const ValueId table = maker.input("table", {DType::kFloat32, {kBatch, kRows, kWidth / 2}});
  const auto rotated = [&](const std::string& name) {
    return op("RotaryEmbedding", {heads(product(name)), table, table});
  };
  const ValueId y = op("Attention", {rotated("q"), rotated("k"), heads(product("v"))}, causal);
  expect_left(projected(y), kBoth, {{"Transpose", 4}});
}

TEST_F(FusionHeads, APartThatIsRotatedKeepsTheSplit) {
  const ValueId table = maker.input("table", {DType::kFloat32, {kBatch, kRows, kWidth / 2}});
  const auto parts = ops("Split", {product("qkv", 3 * kColumns)},
                         {{"axis", int64_t{1}}, {"num_outputs", int64_t{3}}}, 3);
  const ValueId q = op("RotaryEmbedding", {heads(parts[0]), table, table});
  const ValueId y = op("Attention", {q, heads(parts[1]), heads(parts[2])});
  expect_left(projected(y), kBoth, {{"Transpose", 2}, {"Split", 1}, {"Concat", 1}});
}

TEST_F(FusionHeads, ValuesThatOthersReadStay) {
  const ValueId q = heads(product("q")), k = heads(product("k")), v = heads(product("v"));
  const ValueId y = op("Attention", {q, k, v});
  const ValueId scaled = op("Mul", {op("Mul", {y, q}), v});
  expect_left(op("Add", {reshaped(scaled, {kBatch * kRows, kColumns}),
                         reshaped(transposed(y, kSwap), {kBatch * kRows, kColumns})}),
              {"attention_operands"}, {{"Transpose", 6}});
}

TEST_F(FusionHeads, AMaskThatIsTrainedLeavesASplitApart) {
  const ValueId mask = maker.parameter("mask", {kHeads, kRows, kRows});
  const auto parts = ops("Split", {product("qkv", 3 * kColumns)},
                         {{"axis", int64_t{1}}, {"num_outputs", int64_t{3}}}, 3);
  const ValueId y = op("Attention", {heads(parts[0]), heads(parts[1]), heads(parts[2]), mask});
  expect_left(projected(y), kBoth, {{"Split", 1}, {"Concat", 1}});
}

// A part with another reader for the rest, a Transpose of columns, a cache: no layout.
TEST_F(FusionHeads, WhatNoLayoutDescribesStays) {
  const auto parts = ops("Split", {product("qkv", 3 * kColumns)},
                         {{"axis", int64_t{1}}, {"num_outputs", int64_t{3}}}, 3);
  const ValueId columns = reshaped(parts[0], {kBatch, kHeads, kWidth, kRows});
  const ValueId q = transposed(columns, {0, 1, 3, 2});
  const ValueId k = reshaped(parts[1], {kBatch, kHeads, kRows, kWidth});
  const ValueId past = maker.input("past", {DType::kFloat32, {kBatch, kHeads, 2, kWidth}});
  const ValueId y = op("Attention", {q, k, heads(parts[2]), 0, past, past});
  const Graph fused = fuse(maker.graph, {projected(y)});
  EXPECT_EQ(fused.fused.count("attention_operands"), 0u) << text(fused);
  EXPECT_EQ(fused.fused.count("attention_result"), 0u) << text(fused);
  const ValueId other = op("Attention", {q, k, k});
  const Graph plain = fuse(maker.graph, {other});
  EXPECT_THAT(operators(plain), IsSupersetOf({"Split", "Transpose"}));
}

}  // namespace fusion_heads_test
}  // namespace ofsdp
