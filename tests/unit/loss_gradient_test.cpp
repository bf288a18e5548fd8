// join_loss_gradient: one node for cross entropy and its gradient, with the same values as two
// nodes; and the graphs where two nodes stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "importer/graph/verify.h"
#include "importer/passes/joined_nodes.h"
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
  // Labels by name; an output of the loss may read the scores too.
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
    maker.graph.terms = {{loss}};
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
  EXPECT_THAT(found->at(apart.terms[0].value),
              Pointwise(FloatNear(1e-6f), expected->at(apart.terms[0].value)));
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

// widen_gradients: every parameter gradient in float32, by the product or by a Cast.
TEST_F(LossGradient, GradientsOf16BitsAreWidened) {
  GraphMaker maker(registry);
  const ValueId x = maker.input("x", {DType::kFloat32, {4, 3}});
  const ValueId scores =
      maker.node("Gemm", "fc", {x, maker.parameter("w", {3, 5}), maker.parameter("b", {5})});
  const ValueId labels = maker.input("labels", {DType::kInt64, {4}});
  maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "entropy", {scores, labels})}};
  const Graph narrow = *autodiff(*lower_precision(maker.graph, DType::kBFloat16));
  const auto never = [](const Graph&, const Node&) { return false; };
  const Graph products = *widen_gradients(narrow, always), casts = *widen_gradients(narrow, never);
  const auto count = [](const Graph& graph, const char* op) {
    return std::ranges::count(operators(graph), op);
  };
  for (const Graph& graph : {products, casts}) {
    const Status verified = verify(graph, "widen_gradients");
    EXPECT_TRUE(verified.ok()) << verified.message();
    for (const Parameter& p : graph.parameters) {
      EXPECT_EQ(graph.value(p.gradient).desc.dtype, DType::kFloat32) << p.name;
    }
  }
  EXPECT_EQ(products.fused.at("wide_gradient"), 1);
  EXPECT_EQ(count(products, "Cast") - count(narrow, "Cast"), 1) << "the bias's";
  EXPECT_EQ(count(casts, "Cast") - count(narrow, "Cast"), 2);
}

TEST_F(LossGradient, StaysApartWhereNoKernelTakesIt) {
  const Graph apart = trained(false, false);
  const auto never = [](const Graph&, const Node&) { return false; };
  EXPECT_EQ(text(join_loss_gradient(apart, never)), text(apart));
}

// --- scores [N, C, d...] ---

struct SpatialCase {
  const char* name = "";
  Shape scores;
  bool weighted = false, ignores = false;
  const char* reduction = "mean";
  DType labels = DType::kInt64;
};

constexpr int64_t kIgnored = -100;

// The loss and the gradient for the scores, in double and plain loops.
struct PlainLoss {
  double loss = 0;
  std::vector<double> gradient;

  PlainLoss(const SpatialCase& c, const std::vector<float>& x, const std::vector<float>& weights,
            const std::vector<int64_t>& labels)
      : gradient(x.size()) {
    const int64_t classes = c.scores[1], inner = c.scores.numel(2, c.scores.rank());
    double kept = 0;
    for (int64_t n = 0; n < c.scores[0]; ++n) {
      for (int64_t d = 0; d < inner; ++d) {
        const int64_t label = labels[static_cast<size_t>(n * inner + d)];
        if (label == kIgnored) continue;
        const auto at = [&](int64_t k) {
          return static_cast<size_t>((n * classes + k) * inner + d);
        };
        double sum = 0;
        for (int64_t k = 0; k < classes; ++k) sum += std::exp(double{x[at(k)]});
        const double w = c.weighted ? double{weights[static_cast<size_t>(label)]} : 1;
        kept += w;
        loss += w * (std::log(sum) - double{x[at(label)]});
        for (int64_t k = 0; k < classes; ++k) {
          gradient[at(k)] = w * (std::exp(double{x[at(k)]}) / sum - (k == label ? 1 : 0));
        }
      }
    }
    if (std::string(c.reduction) != "mean") return;
    loss /= kept;
    for (double& g : gradient) g /= kept;
  }
};

class SpatialLoss : public LossGradient, public ::testing::WithParamInterface<SpatialCase> {
 protected:
  // The scores are a parameter: their gradient is the loss's own.
  Graph forward_of(const SpatialCase& c) {
    GraphMaker maker(registry);
    std::vector<int64_t> axes = c.scores.axes();
    axes.erase(axes.begin() + 1);
    const ValueId scores = maker.node("Identity", "same", {maker.parameter("x", c.scores)});
    std::vector<ValueId> operands{scores, maker.input("labels", {c.labels, Shape(axes)})};
    if (c.weighted) operands.push_back(maker.parameter("weights", {c.scores[1]}, false));
    Attributes attributes{{"reduction", std::string(c.reduction)}};
    if (c.ignores) attributes.set("ignore_index", kIgnored);
    maker.graph.terms = {{maker.node("SoftmaxCrossEntropyLoss", "entropy", operands, attributes)}};
    return maker.graph;
  }

  static std::vector<int64_t> labels_of(const SpatialCase& c) {
    std::vector<int64_t> labels(static_cast<size_t>(c.scores.numel() / c.scores[1]));
    for (size_t i = 0; i < labels.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      labels[i] = c.ignores && i % 3 == 1 ? kIgnored : (place * 7 + place / 5) % c.scores[1];
    }
    return labels;
  }

  static void feed_labels(const SpatialCase& c, const std::vector<int64_t>& labels,
                          std::vector<float>& feed) {
    const std::vector<int32_t> narrow(labels.begin(), labels.end());
    const bool wide = c.labels == DType::kInt64;
    feed.resize((wide ? 2 : 1) * labels.size());  // as bytes
    std::memcpy(feed.data(), wide ? static_cast<const void*>(labels.data()) : narrow.data(),
                feed.size() * sizeof(float));
  }
};

TEST_P(SpatialLoss, TrainsOnTheFunctionOfTheFile) {
  const SpatialCase& c = GetParam();
  const Graph joined = join_loss_gradient(*autodiff(forward_of(c)), always);
  EXPECT_EQ(std::ranges::count(operators(joined), kJoined), c.scores.rank() == 2 ? 1 : 0);
  auto feeds = testing::random_feeds(joined);
  const std::vector<int64_t> labels = labels_of(c);
  feed_labels(c, labels, feeds["labels"]);
  for (float& w : feeds["weights"]) w = std::abs(w) + 0.25f;
  const PlainLoss expected(c, feeds["x"], feeds["weights"], labels);
  const auto found = testing::run_graph(joined, feeds);
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_NEAR(found->at(joined.terms[0].value)[0], expected.loss,
              2e-6 * (1 + std::abs(expected.loss)));
  EXPECT_THAT(found->at(joined.parameters[0].gradient),
              Pointwise(::testing::DoubleNear(2e-6), expected.gradient));
}

TEST_P(SpatialLoss, StaysApartIn16Bits) {
  const SpatialCase& c = GetParam();
  const Graph lean = *lower_precision(forward_of(c), DType::kBFloat16);
  const bool matrix = c.scores.rank() == 2;
  const std::string narrow = "ofsdp.NarrowCrossEntropyLoss";
  EXPECT_EQ(std::ranges::count(operators(lean), narrow), matrix ? 1 : 0);
  const Graph joined = join_loss_gradient(*autodiff(lean), always);
  EXPECT_EQ(std::ranges::count(operators(joined), kJoined), matrix ? 1 : 0);
}

// The kernel refuses these cases too, so no other pass can bring them to it.
TEST_P(SpatialLoss, NoKernelJoinsThem) {
  const SpatialCase& c = GetParam();
  const Graph graph = forward_of(c);
  const Node& loss = graph.nodes.back();
  const TensorDesc scores{DType::kFloat32, c.scores};
  Problem problem{loss.attributes, {{DType::kFloat32, {}}, scores}, {}, {}};
  problem.inputs.push_back(graph.value(loss.inputs[1]).desc);
  if (c.weighted) problem.inputs.push_back(graph.value(loss.inputs[2]).desc);
  problem.constants.resize(problem.inputs.size());
  problem.outputs = {{DType::kFloat32, {}}, scores};
  EXPECT_EQ(create_kernel(registry.get(kJoined), problem).ok(), c.scores.rank() == 2);
}

INSTANTIATE_TEST_SUITE_P(
    Scores, SpatialLoss,
    ::testing::Values(
        SpatialCase{.name = "matrix", .scores = {6, 5}},
        SpatialCase{.name = "matrix_weighted", .scores = {6, 5}, .weighted = true, .ignores = true},
        SpatialCase{.name = "sequence", .scores = {4, 5, 7}},
        SpatialCase{.name = "sequence_sum", .scores = {4, 5, 7}, .reduction = "sum"},
        SpatialCase{.name = "sequence_of_one", .scores = {4, 5, 1}},
        SpatialCase{.name = "image_ignored", .scores = {4, 3, 5, 4}, .ignores = true},
        SpatialCase{.name = "image_weighted_ignored",
                    .scores = {4, 4, 3, 6},
                    .weighted = true,
                    .ignores = true},
        SpatialCase{.name = "image_weighted_sum",
                    .scores = {2, 4, 3, 2},
                    .weighted = true,
                    .ignores = true,
                    .reduction = "sum",
                    .labels = DType::kInt32},
        SpatialCase{.name = "volume", .scores = {2, 3, 2, 3, 2}, .weighted = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace loss_gradient_test
}  // namespace ofsdp
