// multiply_kept_rows and chunk_losses: losses and gradients are as from products of all rows,
// whatever a micro-batch keeps; kept rows also have the same bits if a micro-batch keeps all. And
// the graphs that stay unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "fsdp/plan/plan.h"
#include "importer/graph/verify.h"
#include "importer/passes/joined_nodes.h"
#include "importer/passes/passes.h"
#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"
#include "tests/support/run_graph.h"

namespace ofsdp {
namespace kept_rows_test {

using ::testing::FloatNear;
using testing::GraphMaker;
using testing::operators;
using ::testing::Pointwise;

constexpr int64_t kRows = 130, kClasses = 1024, kWidth = 12, kIgnored = -100;
const std::string kProduct = "ofsdp.KeptRowsGemm", kChunked = "ofsdp.LinearCrossEntropy";

bool always(const Graph&, const Node&) { return true; }

// Differences from a graph that the pass accepts.
struct Case {
  const char* name = "";
  int64_t rows = kRows, classes = kClasses;
  bool ignores = true, transposed = true, biased = true, reads_scores = false;
  bool makes_labels = false;  // made by nodes after the scores
  bool recomputed = false;    // backward makes scores and labels again
  DType dtype = DType::kFloat32;
};

class KeptRows : public ::testing::Test {
 protected:
  // x [rows, width] -> Gemm, Relu -> Reshape -> Gemm with the head's weights as exporters leave
  // them -> views -> cross entropy.
  Graph apart(const Case& c) {
    GraphMaker maker(registry);
    const ValueId x = maker.input("x", {DType::kFloat32, {c.rows, kWidth}});
    const ValueId hidden = maker.node(
        "Relu", "act", {maker.node("Gemm", "fc", {x, maker.parameter("w", {kWidth, kWidth})})});
    const Shape weights = c.transposed ? Shape{c.classes, kWidth} : Shape{kWidth, c.classes};
    std::vector<ValueId> operands{hidden, maker.parameter("head", weights)};
    if (c.biased) operands.push_back(maker.parameter("bias", {c.classes}));
    const ValueId scores =
        maker.node("Gemm", "scores", operands, {{"transB", int64_t{c.transposed}}});
    const ValueId deep = maker.node("Reshape", "deep", {scores, maker.ints({2, c.rows / 2, -1})});
    const ValueId flat = maker.node("Reshape", "flat", {deep, maker.ints({-1, c.classes})});
    ValueId labels = maker.input("labels", {DType::kInt64, {c.rows}});
    if (c.makes_labels) labels = maker.node("Neg", "minus", {maker.node("Neg", "plus", {labels})});
    Attributes attributes;
    if (c.ignores) attributes.set("ignore_index", kIgnored);
    maker.graph.terms = {
        {maker.node("SoftmaxCrossEntropyLoss", "entropy", {flat, labels}, attributes)}};
    if (c.reads_scores) {
      const ValueId mean = maker.node("ReduceMean", "mean", {deep}, {{"keepdims", int64_t{0}}});
      maker.graph.terms = {{maker.node("Add", "both", {maker.graph.terms[0].value, mean})}};
    }
    Graph graph = std::move(maker.graph);
    if (c.dtype != DType::kFloat32) graph = *lower_precision(graph, c.dtype);
    graph = *autodiff(graph);
    if (c.recomputed) {
      const Segment all{.unit = 0, .first = 0, .last = forward_end(graph) - 1};
      graph = recompute(graph, {all}, {SegmentRecompute::kAll});
    }
    return join_loss_gradient(graph, always);
  }

  // Every gradient and the loss, if the first `kept` labels in each group of `of` are kept.
  static std::map<std::string, std::vector<float>> run(const Graph& graph, int64_t kept,
                                                       int64_t of) {
    auto feeds = testing::random_feeds(graph);
    std::vector<int64_t> labels(kRows);
    for (int64_t i = 0; i < kRows; ++i) labels[i] = i % of < kept ? i * 7 % kClasses : kIgnored;
    feeds["labels"].resize(2 * labels.size());  // as bytes
    std::memcpy(feeds["labels"].data(), labels.data(), labels.size() * sizeof(int64_t));
    auto found = testing::run_graph(graph, feeds);
    if (!found.ok()) throw std::runtime_error(found.error().message());
    std::map<std::string, std::vector<float>> named{{"loss", found->at(graph.terms[0].value)}};
    for (const Parameter& p : graph.parameters) named[p.name] = found->at(p.gradient);
    return named;
  }

  Registry registry = make_registry();
};

class KeptRowsOf : public KeptRows, public ::testing::WithParamInterface<Case> {};

TEST_P(KeptRowsOf, HaveTheValuesOfAllRows) {
  const Graph before = apart(GetParam());
  const Graph after = multiply_kept_rows(before, always);
  EXPECT_EQ(std::ranges::count(operators(after), kProduct), 3);
  EXPECT_EQ(after.fused.at("kept_rows"), 1);
  const Status verified = verify(after, "multiply_kept_rows");
  EXPECT_TRUE(verified.ok()) << verified.message();
  for (const auto& [kept, of] : {std::pair<int64_t, int64_t>{0, 1}, {1, 130}, {1, 9}, {3, 4}}) {
    auto expected = run(before, kept, of), found = run(after, kept, of);
    for (const auto& [name, values] : expected) {
      EXPECT_THAT(found[name], Pointwise(FloatNear(1e-6f), values))
          << name << ", " << kept << " of " << of;
    }
  }
  EXPECT_EQ(run(before, 1, 1), run(after, 1, 1)) << "all kept: the same kernels, the same bits";
}

// Chunks with about 44 rows: the last has fewer.
PassSwitches in_chunks() { return {.least_chunked_bytes = 0, .least_chunk_rows = 40}; }

TEST_P(KeptRowsOf, AreComputedInChunksWithTheValuesOfWholeScores) {
  const Graph before = apart(GetParam());
  for (const Graph& whole : {before, multiply_kept_rows(before, always)}) {
    const Graph after = chunk_losses(whole, always, in_chunks());
    const auto names = operators(after);
    EXPECT_EQ(std::ranges::count(names, kChunked), 1);
    EXPECT_EQ(std::ranges::count(names, kProduct) + std::ranges::count(names, "ofsdp.SumTo"), 0);
    EXPECT_EQ(after.fused.at("chunked_loss"), 1);
    const Status verified = verify(after, "chunk_losses");
    EXPECT_TRUE(verified.ok()) << verified.message();
    for (const auto& [kept, of] : {std::pair<int64_t, int64_t>{0, 1}, {3, 4}}) {
      auto expected = run(before, kept, of), found = run(after, kept, of);
      for (const auto& [name, values] : expected) {
        EXPECT_THAT(found[name], Pointwise(FloatNear(2e-6f), values))
            << name << ", " << kept << " of " << of;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, KeptRowsOf,
    ::testing::Values(Case{.name = "linear"}, Case{.name = "plain", .transposed = false},
                      Case{.name = "unbiased", .biased = false},
                      Case{.name = "made_labels", .makes_labels = true},
                      Case{.name = "recomputed", .recomputed = true},
                      Case{.name = "recomputed_labels", .makes_labels = true, .recomputed = true}),
    [](const auto& info) { return info.param.name; });

TEST_F(KeptRows, AreFoundIn16BitsToo) {
  const Graph after = multiply_kept_rows(apart({.dtype = DType::kBFloat16}), always);
  EXPECT_EQ(std::ranges::count(operators(after), kProduct), 3);
}

TEST_F(KeptRows, StayWithTheOthersWhereTheyMust) {
  for (const Case& c :
       {Case{.name = "labels that none ignores", .ignores = false},
        Case{.name = "few rows", .rows = 126}, Case{.name = "few classes", .classes = 1023},
        Case{.name = "scores that something else reads", .reads_scores = true}}) {
    const Graph graph = apart(c);
    EXPECT_EQ(text(multiply_kept_rows(graph, always)), text(graph)) << c.name;
  }
  const Graph graph = apart({.name = "no kernel"});
  for (const char* missing :
       {"ofsdp.KeptRows", "ofsdp.TakeKeptRows", "ofsdp.PutKeptRows", "ofsdp.KeptRowsGemm"}) {
    const auto takes = [missing](const Graph&, const Node& node) {
      return node.op->full_name() != missing;
    };
    EXPECT_EQ(text(multiply_kept_rows(graph, takes)), text(graph)) << missing;
  }
}

TEST_F(KeptRows, ScoresAreCutIn16BitsAndWhereNoneIsIgnored) {
  for (const Case& c : {Case{.dtype = DType::kBFloat16}, Case{.ignores = false}}) {
    const Graph after = chunk_losses(apart(c), always, in_chunks());
    EXPECT_EQ(std::ranges::count(operators(after), kChunked), 1);
  }
}

// Few bytes or rows, other readers, no kernel: the graph stays whole.
TEST_F(KeptRows, ScoresStayWholeWhereTheyMust) {
  const Graph graph = apart({});
  const auto never = [](const Graph&, const Node&) { return false; };
  EXPECT_EQ(text(chunk_losses(graph, always, PassSwitches{})), text(graph));
  EXPECT_EQ(text(chunk_losses(graph, never, in_chunks())), text(graph));
  PassSwitches more_bytes = in_chunks(), more_rows = in_chunks();
  more_bytes.least_chunked_bytes = size_t{kRows} * kClasses * sizeof(float) + 1;
  more_rows.least_chunk_rows = kRows / 2 + 1;
  for (const PassSwitches& switches : {more_bytes, more_rows}) {
    EXPECT_EQ(text(chunk_losses(graph, always, switches)), text(graph));
  }
  const Graph read = apart({.reads_scores = true});
  EXPECT_EQ(text(chunk_losses(read, always, in_chunks())), text(read));
}

// In 16 bits the weights' gradient needs a separate buffer in float32.
TEST_F(KeptRows, ScoresAreCutOnlyIfThatSavesBytes) {
  const Graph narrow = apart({.dtype = DType::kBFloat16});
  PassSwitches least = in_chunks();
  least.least_chunked_bytes = 1;
  EXPECT_EQ(std::ranges::count(operators(chunk_losses(narrow, always, least)), kChunked), 1);
  const Graph few = apart({.rows = 16, .dtype = DType::kBFloat16});
  least.least_chunk_rows = 8;  // scores take 32 KiB, a gradient 48
  EXPECT_EQ(text(chunk_losses(few, always, least)), text(few));
}

}  // namespace kept_rows_test
}  // namespace ofsdp
