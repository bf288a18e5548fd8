// Every fusion in the exporters' spellings: it happens, it can be switched off, and loss and
// gradients are the same either way.
#include <cmath>
#include <limits>
#include <numbers>

#include "importer/passes/joined_nodes.h"
#include "kernels/core/planned_operands.h"
#include "tests/support/fusion_fixture.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace fusion_test {

using Fusion = testing::Fusion;

TEST_F(Fusion, LinearWithTransposedWeightsAndBias) {
  const ValueId x = maker.parameter("x", {2, 5, 8});
  const ValueId w = maker.parameter("w", {6, 8});
  const ValueId b = maker.parameter("b", {6});
  const ValueId t = op("Transpose", {w}, {{"perm", std::vector<int64_t>{1, 0}}});
  expect_same(op("Add", {b, op("MatMul", {x, t})}), {"linear", "bias"});
}

TEST_F(Fusion, LinearWithPlainWeights) {
  const ValueId x = maker.parameter("x", {2, 5, 8});
  const ValueId w = maker.parameter("w", {8, 6});
  expect_same(op("MatMul", {x, w}), {"linear"});
}

TEST_F(Fusion, GeluErfAsTheLegacyExporterWritesIt) {
  const ValueId x = maker.parameter("x", {4, 33});
  const ValueId erf = op("Erf", {op("Div", {x, number(std::numbers::sqrt2)})});
  const ValueId gate = op("Mul", {x, op("Add", {erf, number(1)})});
  expect_same(op("Mul", {gate, number(0.5)}), {"gelu"});
}

TEST_F(Fusion, GeluErfWithTheHalfInFront) {
  const ValueId x = maker.parameter("x", {4, 33});
  const ValueId half = op("Mul", {number(0.5), x});
  const ValueId erf = op("Erf", {op("Mul", {x, number(1 / std::numbers::sqrt2)})});
  expect_same(op("Mul", {half, op("Add", {number(1), erf})}), {"gelu"});
}

TEST_F(Fusion, GeluTanhAsGpt2HasIt) {
  const ValueId x = maker.parameter("x", {4, 33});
  const ValueId cube = op("Mul", {number(0.044715), op("Pow", {x, number(3)})});
  const ValueId inner = op("Mul", {number(std::sqrt(2 / std::numbers::pi)), op("Add", {x, cube})});
  const ValueId gate = op("Add", {number(1), op("Tanh", {inner})});
  expect_same(op("Mul", {op("Mul", {number(0.5), x}), gate}), {"gelu"});
}

TEST_F(Fusion, LayerNormalizationFromItsPieces) {
  const ValueId x = maker.parameter("x", {3, 4, 16});
  const ValueId scale = maker.parameter("scale", {16});
  const ValueId bias = maker.parameter("bias", {16});
  const ValueId d = op("Sub", {x, op("ReduceMean", {x, maker.ints({-1})})});
  const ValueId variance = op("ReduceMean", {op("Pow", {d, number(2)}), maker.ints({-1})});
  const ValueId root = op("Sqrt", {op("Add", {variance, number(1e-5)})});
  const ValueId y = op("Add", {op("Mul", {op("Div", {d, root}), scale}), bias});
  expect_same(y, {"layer_norm"});
}

TEST_F(Fusion, RmsNormalizationFromItsPieces) {
  const ValueId x = maker.parameter("x", {3, 4, 16});
  const ValueId scale = maker.parameter("scale", {16});
  const ValueId mean = op("ReduceMean", {op("Pow", {x, number(2)}), maker.ints({-1})});
  const ValueId root = op("Sqrt", {op("Add", {mean, number(1e-6)})});
  const ValueId inverse = op("Div", {number(1), root});
  expect_same(op("Mul", {scale, op("Mul", {x, inverse})}), {"rms_norm"});
}

TEST_F(Fusion, AttentionWithMaskAndScaledOperands) {
  const ValueId q = maker.parameter("q", {2, 3, 5, 8});
  const ValueId k = maker.parameter("k", {2, 3, 5, 8});
  const ValueId v = maker.parameter("v", {2, 3, 5, 8});
  const ValueId mask = maker.input("mask", {DType::kFloat32, {2, 1, 5, 5}});
  const double root = std::pow(8.0, -0.25);
  const ValueId kt = op("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  const ValueId product =
      op("MatMul", {op("Mul", {q, number(root)}), op("Mul", {kt, number(root)})});
  const ValueId p = op("Softmax", {op("Add", {product, mask})}, {{"axis", int64_t{-1}}});
  expect_same(op("MatMul", {p, v}), {"attention"});
}

TEST_F(Fusion, AttentionScaledAfterwardsWithoutMask) {
  const ValueId q = maker.parameter("q", {2, 3, 5, 8});
  const ValueId k = maker.parameter("k", {2, 7, 3, 8});  // heads last but one
  const ValueId v = maker.parameter("v", {2, 3, 7, 4});
  const ValueId kt = op("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}});
  const ValueId s = op("Div", {op("MatMul", {q, kt}), number(std::sqrt(8.0))});
  expect_same(op("MatMul", {op("Softmax", {s}), v}), {"attention"});
}

TEST_F(Fusion, AttentionOfFusedMatMuls) {
  const Shape heads{2, 2, 5, 8};
  const ValueId q = maker.parameter("q", heads), k = maker.parameter("k", heads);
  const ValueId v = maker.parameter("v", heads);
  const ValueId s =
      op("com.microsoft.FusedMatMul", {q, k}, {{"transB", int64_t{1}}, {"alpha", 0.3f}});
  expect_same(op("MatMul", {op("Softmax", {s}), v}), {"attention"});
}

TEST_F(Fusion, LinearWithBiasOfFusedOperators) {
  const ValueId x = maker.parameter("x", {2, 5, 8});
  const ValueId w = maker.parameter("w", {6, 8}), b = maker.parameter("b", {6});
  const ValueId product =
      op("com.microsoft.FusedMatMul", {x, w}, {{"transB", int64_t{1}}, {"alpha", 0.3f}});
  const ValueId biased = op("com.microsoft.BiasGelu", {product, b});
  const ValueId c = maker.parameter("c", {4}), up = maker.parameter("up", {6, 4});
  expect_same(op("com.microsoft.FastGelu", {op("MatMul", {biased, up}), c}),
              {"linear", "bias_gelu"});
}

TEST_F(Fusion, AttentionBetweenCastsThatChangeNothing) {
  const ValueId q = maker.parameter("q", {2, 3, 5, 8});
  const ValueId k = maker.parameter("k", {2, 7, 3, 8});  // heads last but one
  const ValueId v = maker.parameter("v", {2, 3, 7, 4});
  const ValueId kt = op("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}});
  const ValueId s = op("Div", {op("MatMul", {q, kt}), number(std::sqrt(8.0))});
  const Attributes to_float{{"to", int64_t{1}}};
  const ValueId p = op("Softmax", {op("Cast", {s}, to_float)});
  expect_same(op("MatMul", {op("Cast", {p}, to_float), v}), {"attention"});
}

TEST_F(Fusion, AttentionBehindTheGuardAgainstMaskedRows) {
  const ValueId q = maker.parameter("q", {2, 3, 5, 8});
  const ValueId k = maker.parameter("k", {2, 3, 5, 8});
  const ValueId v = maker.parameter("v", {2, 3, 5, 8});
  const ValueId joined = op("Reshape", {k, maker.ints({6, 5, 8})});
  const ValueId turned = op("Transpose", {joined}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
  const ValueId kt = op("Reshape", {turned, maker.ints({2, 3, 8, 5})});
  const ValueId p = op("Softmax", {op("Mul", {op("MatMul", {q, kt}), number(0.25)})});
  const ValueId guarded = op("Where", {op("IsNaN", {p}), number(0), p});
  expect_same(op("MatMul", {guarded, v}), {"attention"});
}

// [5, 5]: `hidden` above the diagonal, else 0.
std::vector<float> causal(float hidden) {
  std::vector<float> mask(25);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 5 <= i / 5 ? 0 : hidden;
  return mask;
}

TEST_F(Fusion, AttentionWithAMaskThatIsCausality) {
  const ValueId q = maker.parameter("q", {2, 3, 5, 8});
  const ValueId k = maker.parameter("k", {2, 3, 5, 8});
  const ValueId v = maker.parameter("v", {2, 3, 5, 4});
  const ValueId kt = op("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  const ValueId scores = op("Mul", {op("MatMul", {q, kt}), number(0.25)});
  const ValueId mask = table({1, 1, 5, 5}, causal(-std::numeric_limits<float>::infinity()));
  const ValueId p = op("Softmax", {op("Add", {scores, mask})});
  expect_same(op("MatMul", {p, v}), {"attention", "causal_mask"});
}

TEST_F(Fusion, OnlyAMaskThatIsCausalityIsTakenForIt) {
  const ValueId q = maker.parameter("q", {2, 3, 5, 8});
  const auto is_fused = [&](const std::vector<float>& values) {
    const ValueId y = op("Attention", {q, q, q, table({5, 5}, values)});
    const Graph fused = fuse(maker.graph, {y}, {{}, 0});
    return fused.fused.contains("causal_mask");
  };
  EXPECT_TRUE(is_fused(causal(-1e9F)));
  EXPECT_TRUE(is_fused(causal(std::numeric_limits<float>::lowest())));
  EXPECT_FALSE(is_fused(causal(-100)));
  std::vector<float> other = causal(-1e9F);
  other[5] = -1e9F;  // the second query does not see the first key
  EXPECT_FALSE(is_fused(other));
  other = causal(-1e9F);
  other[20] = 0.5F;
  EXPECT_FALSE(is_fused(other));
}

// Bands that fusion finds in masks for 5 queries and 5 keys.
class MaskBands : public Fusion {
 protected:
  // The band found; empty: none.
  std::vector<int64_t> band_of(ValueId mask) {
    const ValueId q = maker.parameter(format_text("q{}", ++queries_), {2, 3, 5, 8});
    const ValueId y = op("Attention", {q, q, q, mask});
    const Graph fused = fuse(maker.graph, {y}, {{}, 0});
    for (const Node& node : fused.nodes) {
      if (is_operator(node, "Attention")) return node.attributes.ints(kMaskBand);
    }
    return {};
  }
  // [5, 5]: true up to `left` before the diagonal and `right` after it.
  ValueId truth(int64_t left, int64_t right) {
    std::vector<bool> seen;
    for (int64_t i = 0; i < 25; ++i)
      seen.push_back(i % 5 >= i / 5 - left && i % 5 <= i / 5 + right);
    Constant made{{DType::kBool, {5, 5}}, {}};
    for (const bool one : seen) made.bytes.push_back(std::byte{one});
    return GraphEditor(maker.graph)
        .add_constant("truth", std::make_shared<const Constant>(std::move(made)));
  }
  ValueId padding() { return op("Cast", {feed({2, 1, 1, 5})}, {{"to", int64_t{9}}}); }
  ValueId feed(const Shape& shape) {
    return maker.input(format_text("mask{}", ++feeds_), {DType::kInt64, shape});
  }
  ValueId additive(ValueId seen) { return op("Where", {seen, number(0), number(-3e38)}); }

  int queries_ = 0, feeds_ = 0;
};
using Bounds = std::vector<int64_t>;

TEST_F(MaskBands, OfPaddingAlone) {
  const ValueId whole = op("Expand", {padding(), maker.ints({2, 1, 5, 5})});
  EXPECT_EQ(band_of(whole), (Bounds{-1, -1}));
  EXPECT_EQ(band_of(additive(whole)), (Bounds{-1, -1}));
  EXPECT_EQ(band_of(op("And", {truth(4, 4), padding()})), (Bounds{-1, -1}));
  EXPECT_EQ(band_of(padding()), Bounds{});  // the shape says so
}

TEST_F(MaskBands, OfPaddingWithACausalOrSlidingPart) {
  EXPECT_EQ(band_of(op("And", {truth(4, 0), padding()})), (Bounds{-1, 0}));
  EXPECT_EQ(band_of(additive(op("And", {padding(), truth(2, 0)}))), (Bounds{2, 0}));
  EXPECT_EQ(band_of(op("Add", {additive(truth(1, 2)), additive(padding())})), (Bounds{1, 2}));
  const ValueId hidden = op("Not", {op("And", {truth(4, 0), padding()})});
  EXPECT_EQ(band_of(op("Where", {hidden, number(-1e9), number(0)})), (Bounds{-1, 0}));
  EXPECT_EQ(band_of(truth(1, 1)), (Bounds{1, 1}));
}

TEST_F(MaskBands, OfNothingElse) {
  const ValueId rows = op("Cast", {feed({2, 1, 5, 5})}, {{"to", int64_t{9}}});
  EXPECT_EQ(band_of(rows), Bounds{});
  EXPECT_EQ(band_of(op("And", {truth(4, 0), rows})), Bounds{});
  EXPECT_EQ(band_of(op("Or", {truth(4, 0), padding()})), Bounds{});
  EXPECT_EQ(band_of(op("Where", {padding(), number(0), number(-10)})), Bounds{});
  EXPECT_EQ(band_of(op("Where", {truth(4, 0), number(0), number(-10)})), Bounds{});
  std::vector<float> other = causal(-1e9F);
  other[5] = -1e9F;  // the second query does not see the first key
  EXPECT_EQ(band_of(table({5, 5}, other)), Bounds{});
  const ValueId learned = maker.parameter("bias", {5, 5});
  EXPECT_EQ(band_of(op("Add", {additive(truth(4, 0)), learned})), Bounds{});
}

TEST_F(Fusion, LossOverLogits) {
  const ValueId x = maker.parameter("x", {6, 5});
  const std::vector<int64_t> classes{0, 4, 2, 1, 3, 3};
  const ValueId labels = maker.ints(classes);
  maker.graph.terms = {{op("NegativeLogLikelihoodLoss", {op("LogSoftmax", {x}), labels})}};
  compare({"log_softmax_loss"}, 2e-5);
}

TEST_F(Fusion, PooledRelu) {
  const ValueId x = maker.parameter("x", {2, 3, 6, 6});
  const Attributes window{{"kernel_shape", std::vector<int64_t>{2, 2}},
                          {"strides", std::vector<int64_t>{2, 2}}};
  expect_same(op("MaxPool", {op("Relu", {x})}, window), {"max_pool_relu"});
}

TEST_F(Fusion, ChainOfElementwiseOperators) {
  const ValueId gate = maker.parameter("gate", {3, 400}), up = maker.parameter("up", {3, 400});
  const ValueId row = maker.parameter("row", {400});
  const ValueId silu = op("Mul", {gate, op("Sigmoid", {gate})});
  const ValueId product = op("Mul", {op("Mul", {silu, up}), number(0.5)});
  expect_same(op("Relu", {op("Add", {product, row})}), {"chain"});
  const Graph fused = fuse(maker.graph, {maker.graph.terms[0].value}, {{}, 0});
  EXPECT_THAT(testing::operators(fused), ::testing::ElementsAre("ofsdp.Chain", "ofsdp.MseLoss"));
}

// Backward nodes that read a chain's result.
size_t backward_readers_of_chains(const Graph& graph) {
  const GraphUses uses(graph);
  size_t count = 0;
  for (const Node& node : graph.nodes) {
    if (node.op->full_name() != "ofsdp.Chain") continue;
    for (const size_t i : uses.readers(node.outputs[0])) count += graph.nodes[i].backward;
  }
  return count;
}

TEST_F(Fusion, AGradientReturnsTheResultOfItsChainAgain) {
  const ValueId x = maker.parameter("x", {3, 400});
  const ValueId gate = op("MatMul", {x, maker.parameter("gate", {400, 300})});
  const ValueId up = op("MatMul", {x, maker.parameter("up", {400, 300})});
  const ValueId inner = op("Mul", {op("Mul", {gate, op("Sigmoid", {gate})}), up});
  const ValueId y = op("MatMul", {inner, maker.parameter("down", {300, 200})});
  const ValueId target = maker.input("target", {DType::kFloat32, {3, 200}});
  maker.graph.terms = {{op("ofsdp.MseLoss", {y, target})}};
  const auto made = autodiff(fuse(maker.graph, {maker.graph.terms[0].value}, {{}, 0}));
  ASSERT_TRUE(made.ok());
  const Graph& kept = *made;
  const Graph again = repeat_chains(kept, [](const Graph&, const Node&) { return true; });
  EXPECT_EQ(backward_readers_of_chains(kept), 1U);
  EXPECT_EQ(backward_readers_of_chains(again), 0U);
  EXPECT_EQ(again.fused.at("chain_again"), 1);
  compare_values(again, kept, 0);
  const Graph refused = repeat_chains(kept, [](const Graph&, const Node&) { return false; });
  EXPECT_EQ(backward_readers_of_chains(refused), 1U);
}

TEST_F(Fusion, ChainsEndWhereOthersRead) {
  const ValueId x = maker.parameter("x", {3, 400});
  const ValueId y = op("Tanh", {op("Neg", {x})});                      // read twice below
  const ValueId square = op("Exp", {op("Neg", {op("Mul", {y, y})})});  // only one node reads y
  expect_same(op("Add", {op("Sigmoid", {y}), square}), {"chain"});
  const Graph fused = fuse(maker.graph, {maker.graph.terms[0].value}, {{}, 0});
  EXPECT_THAT(testing::operators(fused),
              ::testing::ElementsAre("ofsdp.Chain", "ofsdp.Chain", "ofsdp.MseLoss"));
}

TEST_F(Fusion, ChainOfImages) {
  const ValueId x = maker.parameter("x", {2, 3, 6, 6});
  const Attributes kernel{{"kernel_shape", std::vector<int64_t>{3, 3}}};
  const ValueId c = op("Conv", {x, maker.parameter("w", {4, 3, 3, 3})}, kernel);
  expect_same(op("Mul", {c, op("Tanh", {op("Softplus", {c})})}), {"chain"});
}

}  // namespace fusion_test
}  // namespace ofsdp
