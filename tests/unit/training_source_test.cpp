// TrainingSource builds the graph of each batch and mode once, and again when its settings change.
#include "importer/training_source.h"

#include <gtest/gtest.h>

#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace training_source_test {

// y = x w, compared with a column of the data.
class TrainingSources : public ::testing::Test {
 protected:
  TrainingSources() {
    const ValueId x = maker.input("x", {DType::kFloat32, {4, 3}});
    maker.graph.value(x).declared = {{-1, "batch"}, {3, ""}};
    const ValueId w = maker.parameter("w", {3, 2});
    maker.graph.outputs = {maker.node("MatMul", "y", {x, w})};
  }

  GraphSettings settings(LossKind kind) const {
    return {.losses = {{.kind = kind, .output = {}, .prediction = "y", .labels = "labels"}},
            .rows = {{"x", {3}}, {"labels", {2}}}};
  }

  std::string built(const TrainingSource& source, int64_t batch, Mode mode) {
    const auto graph = source.graph(batch, mode);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    return graph.ok() ? text(*graph) : "";
  }

  Registry registry = make_registry();
  testing::GraphMaker maker{registry};
};

TEST_F(TrainingSources, BuildsEachGraphOnce) {
  TrainingSource source(OnnxFile::of_model("model.onnx", ""), maker.graph, nullptr);
  source.configure(settings(LossKind::kMse));
  const std::string first = built(source, 4, Mode::kTrain);
  EXPECT_EQ(source.graphs_built(), 1);
  EXPECT_EQ(built(source, 4, Mode::kTrain), first);
  EXPECT_EQ(source.graphs_built(), 1);
  const std::string evaluation = built(source, 4, Mode::kEval);
  const std::string short_batch = built(source, 2, Mode::kTrain);
  EXPECT_NE(evaluation, first);
  EXPECT_NE(short_batch, first);
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(built(source, 4, Mode::kTrain), first);
    EXPECT_EQ(built(source, 4, Mode::kEval), evaluation);
    EXPECT_EQ(built(source, 2, Mode::kTrain), short_batch);
  }
  EXPECT_EQ(source.graphs_built(), 3);
}

TEST_F(TrainingSources, BuildsAgainWhenSettingsOrParametersChange) {
  TrainingSource source(OnnxFile::of_model("model.onnx", ""), maker.graph, nullptr);
  source.configure(settings(LossKind::kMse));
  const std::string squares = built(source, 4, Mode::kTrain);
  source.configure(settings(LossKind::kBceWithLogits));
  EXPECT_NE(built(source, 4, Mode::kTrain), squares);
  source.configure(settings(LossKind::kMse));
  EXPECT_EQ(built(source, 4, Mode::kTrain), squares);
  source.set_symbolic(maker.graph);
  EXPECT_EQ(built(source, 4, Mode::kTrain), squares);
  EXPECT_EQ(source.graphs_built(), 4);
}

}  // namespace training_source_test
}  // namespace ofsdp
