// pitch_rows: which values get a pitch, and which stay dense. tests/procs/row_pitch_test.cpp has a
// whole model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importer/passes/joined_nodes.h"
#include "importer/passes/passes.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace row_pitch_test {

using testing::GraphMaker;
using ::testing::UnorderedElementsAre;

const Attributes kTransposed{{"transB", int64_t{1}}};
constexpr int64_t kTokens = 6, kWidth = 8;

bool always(const Graph&, const Node&) { return true; }

class RowPitch : public ::testing::Test {
 protected:
  // A language model's head with a loss: products [6, vocabulary], seen as [2, 3,
  // vocabulary] outside. `transposed`: the weights are [vocabulary, width], as in an
  // embedding.
  Graph head(int64_t vocabulary, bool transposed = true) {
    const ValueId x = maker.input("x", {DType::kFloat32, {kTokens, kWidth}});
    const ValueId h = maker.node("Gemm", "body", {x, maker.parameter("v", {kWidth, kWidth})});
    const ValueId w =
        maker.parameter("w", transposed ? Shape{vocabulary, kWidth} : Shape{kWidth, vocabulary});
    const ValueId scores =
        maker.node("Gemm", "head", {h, w}, transposed ? kTransposed : Attributes{});
    return with_loss(maker.node("Reshape", "whole", {scores, maker.ints({2, 3, vocabulary})}));
  }

  Graph with_loss(ValueId prediction) {
    const ValueId labels = maker.input("labels", {DType::kInt64, {kTokens}});
    const ValueId rows = maker.node("ofsdp.CollapseLeading", "rows", {prediction});
    maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "loss", {rows, labels})}};
    return join_loss_gradient(*autodiff(maker.graph), always);
  }

  // "node: output" for every output with a pitch. A view has the pitch of the viewed value.
  static std::vector<std::string> pitched(const Graph& graph) {
    std::vector<std::string> found;
    for (const Node& node : graph.nodes) {
      for (ValueId id : node.outputs) {
        const TensorDesc& desc = graph.value(id).desc;
        if (node.op->view) {
          EXPECT_EQ(desc.pitch, graph.value(node.inputs[0]).desc.pitch) << node.name;
        } else if (desc.pitch != 0) {
          found.push_back(node.name + ": " + desc.text());
        }
      }
    }
    return found;
  }

  Registry registry = make_registry();
  GraphMaker maker{registry};
};

TEST_F(RowPitch, LogitsTheirViewsAndTheirGradientGetOne) {
  const Graph graph = pitch_rows(head(1003), always);
  EXPECT_THAT(pitched(graph),
              UnorderedElementsAre("head: float32[6, 1003]/1024", "loss: float32[6, 1003]/1024"));
  size_t views = 0;
  for (const Value& value : graph.values) {
    if (value.desc.pitch == 0) continue;
    EXPECT_EQ(value.desc.bytes(), kTokens * 1024 * sizeof(float));
    EXPECT_EQ(value.desc.numel(), kTokens * 1003);
    views += value.desc.shape == Shape{2, 3, 1003};
  }
  EXPECT_EQ(views, 2u) << "forwards and backwards";
}

TEST_F(RowPitch, EveryNodeThatMakesOrReadsThemIsAsked) {
  std::vector<std::string> asked;
  const auto note = [&](const Graph& graph, const Node& node) {
    asked.push_back(node.op->full_name());
    const auto operands = {node.inputs, node.outputs};
    EXPECT_TRUE(std::ranges::any_of(operands, [&](const std::vector<ValueId>& ids) {
      return std::ranges::any_of(ids, [&](ValueId id) { return graph.value(id).desc.pitch != 0; });
    })) << node.name;
    return true;
  };
  pitch_rows(head(1003), note);
  // The product, the loss, and the gradient's products with the weights and the activations.
  EXPECT_THAT(asked, UnorderedElementsAre("Gemm", "ofsdp.SoftmaxCrossEntropyLossWithGradient",
                                          "Gemm", "Gemm"));
}

TEST_F(RowPitch, OneNodeThatRefusesLeavesAllOfThemDense) {
  const Graph dense = head(1003);
  for (size_t refused = 0; refused < 4; ++refused) {
    size_t asked = 0;
    const auto but_one = [&](const Graph&, const Node&) { return asked++ != refused; };
    EXPECT_EQ(text(pitch_rows(dense, but_one)), text(dense)) << refused;
  }
}

TEST_F(RowPitch, RowsThatBeginAtSixteenBytesAreLeftAlone) {
  EXPECT_THAT(pitched(pitch_rows(head(1004), always)), UnorderedElementsAre());
}

// Ten classes would grow to 64.
TEST_F(RowPitch, RowsThatWouldGrowByMoreThanAnEighthAreLeftAlone) {
  EXPECT_THAT(pitched(pitch_rows(head(10), always)), UnorderedElementsAre());
  EXPECT_EQ(pitched(pitch_rows(head(57), always)).size(), 2u);
}

// The gradient for weights [width, vocabulary] has their layout: a reduction reads it.
TEST_F(RowPitch, GradientsOfParametersStayDense) {
  const Graph graph = pitch_rows(head(1003, /*transposed=*/false), always);
  EXPECT_EQ(pitched(graph).size(), 2u);
  for (const Parameter& p : graph.parameters) EXPECT_EQ(graph.value(p.gradient).desc.pitch, 0);
}

TEST_F(RowPitch, AViewOfOtherRowsLeavesThemDense) {
  const ValueId x = maker.input("x", {DType::kFloat32, {kTokens, kWidth}});
  const ValueId scores = maker.node("Gemm", "head", {x, maker.parameter("w", {kWidth, 2 * 1003})});
  const ValueId halves = maker.node("Reshape", "halves", {scores, maker.ints({kTokens * 2, 1003})});
  const ValueId labels = maker.input("labels", {DType::kInt64, {kTokens * 2}});
  maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "loss", {halves, labels})}};
  const Graph graph = join_loss_gradient(*autodiff(maker.graph), always);
  EXPECT_THAT(pitched(pitch_rows(graph, always)), UnorderedElementsAre());
}

}  // namespace row_pitch_test
}  // namespace ofsdp
