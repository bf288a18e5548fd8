// Small models of common kinds (tests/oracle), by both exporters: ten steps follow PyTorch's
// losses, on one rank and on two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace oracle_test {

const std::string kCases = OFSDP_SOURCE_DIR "/tests/oracle/cases/";

std::vector<double> expected_losses(const std::string& name) {
  std::ifstream file(kCases + name + "/losses.txt");
  std::vector<double> losses;
  for (double loss; file >> loss;) losses.push_back(loss);
  return losses;
}

std::vector<double> trained_losses(const std::string& name, const std::string& graph, int world) {
  const testing_data::TempFolder folder;
  const std::string metrics = folder.path() + "/m.jsonl";
  const Finished run = Program::run(
      fsdp_run({kCases + name + "/" + graph, "--loss", "cross_entropy", "--optimizer", "adamw",
                "--lr", "1e-3", "--global-batch-size", "8", "--no-shuffle", "--metrics", metrics}) +
      ranks(world));
  EXPECT_EQ(run.status, 0) << name << " " << graph << ": " << run.err;
  return losses_of(metrics);
}

std::vector<std::string> graphs_of(const std::string& name) {
  std::vector<std::string> graphs;
  for (const auto& entry : std::filesystem::directory_iterator(kCases + name)) {
    if (entry.path().extension() == ".onnx") graphs.push_back(entry.path().filename().string());
  }
  std::ranges::sort(graphs);
  return graphs;
}

class Oracle : public ::testing::TestWithParam<std::string> {};

TEST_P(Oracle, FollowsPyTorch) {
  const std::string name = GetParam();
  const std::vector<double> expected = expected_losses(name);
  ASSERT_EQ(expected.size(), 10u);
  const std::vector<std::string> graphs = graphs_of(name);
  ASSERT_FALSE(graphs.empty());
  for (const std::string& graph : graphs) {
    for (int world : {1, 2}) {
      // A rank normalizes over its micro-batch: two ranks are another run.
      if (name == "residual" && world > 1) continue;
      // Each micro-batch must have tokens for every expert; half of one lacks them for one expert.
      if (name == "switch" && world > 1) continue;
      const std::vector<double> found = trained_losses(name, graph, world);
      ASSERT_EQ(found.size(), expected.size()) << graph << " on " << world;
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 2e-5 * expected[i])
            << graph << " on " << world << " ranks, step " << i + 1;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Oracle,
                         ::testing::Values("residual", "lstm_tagger", "gru", "unet", "llama", "vit",
                                           "experts", "relative_positions", "state_space",
                                           "decoder", "mobile", "whisper", "t5", "mixtral", "mamba",
                                           "picked_experts", "masked_experts", "two_experts",
                                           "switch"),
                         [](const auto& info) { return info.param; });

}  // namespace oracle_test
}  // namespace ofsdp
