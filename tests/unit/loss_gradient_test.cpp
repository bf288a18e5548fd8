// join_loss_gradient: one node for cross entropy and its gradient, with the values of the two; and
// when the two stay apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "importer/passes/passes.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"
#include "tests/support/run_graph.h"

namespace ofsdp {
namespace loss_gradient_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using testing::GraphMaker;
using testing::mlp_training_graph;
using ::testing::Not;
using testing::operators;
using ::testing::Pointwise;

const std::string kJoined = "ofsdp.SoftmaxCrossEntropyLossWithGradient";

bool always(const Graph&, const Node&) { return true; }

class LossGradient : public ::testing::Test {
 protected:
  // Labels by name, and scores that an output of the loss may read besides it.
  Graph forward(bool scaled, bool reads_log_prob) {
    GraphMaker maker(registry);
    const ValueId x = maker.input("x", {DType::kFloat32, {4, 3}});
    const ValueId scores = maker.node("Gemm", "fc", {x, maker.parameter("w", {3, 5})});
    const ValueId labels = maker.input("labels", {DType::kInt64, {4}});
    auto outputs = *GraphEditor(maker.graph)
                        .add("SoftmaxCrossEntropyLoss", "entropy", {scores, labels}, {},
                             reads_log_prob ? 2 : 1);
    ValueId loss = outputs[0];
    if (scaled) loss = maker.node("Add", "twice", {loss, loss});
    if (reads_log_prob) {
      const ValueId mean =
          maker.node("ReduceMean", "mean", {outputs[1]}, {{"keepdims", int64_t{0}}});
      loss = maker.node("Add", "both", {loss, mean});
    }
    maker.graph.loss = loss;
    return maker.graph;
  }

  Graph trained(bool scaled, bool reads_log_prob) {
    return *autodiff(forward(scaled, reads_log_prob));
  }

  Registry registry = make_registry();
};

TEST_F(LossGradient, OneNodeHasTheValuesOfTwo) {
  const Graph apart = mlp_training_graph(registry, 6, {4, 8, 5});
  const Graph joined = join_loss_gradient(apart, always);
  EXPECT_EQ(joined.nodes.size() + 1, apart.nodes.size());
  EXPECT_THAT(operators(joined), Contains(kJoined));
  EXPECT_THAT(operators(joined), Not(Contains("ofsdp.SoftmaxCrossEntropyLossGrad")));
  auto feeds = testing::random_feeds(apart);
  const std::vector<int64_t> labels{0, 1, 2, 3, 4, 0};
  feeds["labels"].resize(2 * labels.size());  // as bytes
  std::memcpy(feeds["labels"].data(), labels.data(), labels.size() * sizeof(int64_t));
  const auto expected = testing::run_graph(apart, feeds), found = testing::run_graph(joined, feeds);
  ASSERT_TRUE(expected.ok()) << expected.error().message();
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_THAT(found->at(apart.loss), Pointwise(FloatNear(1e-6f), expected->at(apart.loss)));
  for (const Parameter& p : apart.parameters) {
    EXPECT_THAT(found->at(p.gradient), Pointwise(FloatNear(1e-6f), expected->at(p.gradient)))
        << p.name;
  }
}

TEST_F(LossGradient, StaysApartWhereMoreThanTheLossWeightIsNeeded) {
  EXPECT_THAT(operators(join_loss_gradient(trained(false, false), always)), Contains(kJoined));
  for (const Graph& graph : {trained(true, false), trained(false, true)}) {
    EXPECT_THAT(operators(join_loss_gradient(graph, always)), Not(Contains(kJoined)));
  }
}

TEST_F(LossGradient, ScoresOf16BitsAreJoinedToo) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Graph apart = *autodiff(*lower_precision(forward(false, false), dtype));
    EXPECT_THAT(operators(apart), Contains("ofsdp.NarrowCrossEntropyLossGrad"));
    const Graph joined = join_loss_gradient(apart, always);
    EXPECT_EQ(joined.nodes.size() + 1, apart.nodes.size());
    EXPECT_THAT(operators(joined), Contains(kJoined));
    EXPECT_THAT(operators(joined), Not(Contains("ofsdp.NarrowCrossEntropyLossGrad")));
  }
}

TEST_F(LossGradient, StaysApartWhereNoKernelTakesIt) {
  const Graph apart = trained(false, false);
  const auto never = [](const Graph&, const Node&) { return false; };
  EXPECT_EQ(text(join_loss_gradient(apart, never)), text(apart));
}

}  // namespace loss_gradient_test
}  // namespace ofsdp
