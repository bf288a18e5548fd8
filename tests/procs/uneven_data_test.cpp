// Data that do not divide: shards of unequal length, a last batch that leaves ranks with fewer
// samples or none, labels that do not count. No rank waits for ever, and loss and weights are those
// of one rank that takes each global batch in one forward.
#include <algorithm>
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace uneven_data_test {

using testing_data::npy;

constexpr int64_t kFeatures = 20;

// So many samples for the perceptron; of `ignored` the label does not count.
void write_data(const testing_data::TempFolder& folder, int64_t samples,
                const std::vector<int64_t>& ignored) {
  std::vector<float> x;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < samples; ++i) {
    for (int64_t j = 0; j < kFeatures; ++j) {
      x.push_back(std::sin(static_cast<float>(i * 7 + j * 3)));
    }
    labels.push_back(std::ranges::count(ignored, i) > 0 ? -100 : i % 3);
  }
  folder.write("x.npy", npy("<f4", format_text("({}, {})", samples, kFeatures), x));
  folder.write("labels.npy", npy("<i8", format_text("({},)", samples), labels));
}

struct Trained {
  std::vector<std::pair<int64_t, double>> losses;
  std::vector<float> weights;
};

Trained trained(const CheckpointRuns& runs, const Words& words) {
  runs.trained(words + Words{"--metrics", runs / "metrics.jsonl"});
  Trained found{losses_by_step(runs / "metrics.jsonl"), {}};
  const auto file = OnnxFile::open(runs / "trained.onnx");
  for (const Initializer& weight : file->initializers()) {
    std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
    EXPECT_TRUE(file->read(weight, 0, values).ok());
    found.weights.insert(found.weights.end(), values.begin(), values.end());
  }
  return found;
}

void expect_near(const Trained& found, const Trained& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i].second, expected.losses[i].second, 2e-6) << "step " << i + 1;
  }
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t i = 0; i < found.weights.size(); ++i) {
    ASSERT_NEAR(found.weights[i], expected.weights[i], 2e-6) << "weight " << i;
  }
}

struct Uneven {
  int64_t samples;
  int ranks;
  int batch, accum;
  std::vector<int64_t> ignored = {};
};

class UnevenDataTest : public testing::TestWithParam<Uneven> {};

INSTANTIATE_TEST_SUITE_P(Shares, UnevenDataTest,
                         testing::Values(Uneven{10, 3, 2, 2},                // 4, 3 and 3 samples
                                         Uneven{10, 3, 1, 2},                // then 2, 1 and 1
                                         Uneven{7, 3, 2, 1},                 // then 1, 0 and 0
                                         Uneven{2, 3, 2, 2},                 // 1, 1 and never one
                                         Uneven{10, 3, 2, 2, {0, 3, 6, 9}},  // rank 0 has no label
                                         Uneven{10, 4, 1, 2, {2, 4, 5, 8}}));

TEST_P(UnevenDataTest, LossAndWeightsAreThoseOfOneRank) {
  const Uneven& u = GetParam();
  const CheckpointRuns runs;
  const testing_data::TempFolder data;
  write_data(data, u.samples, u.ignored);
  const Words train = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--data",
                                data.path(), "--optimizer", "sgd", "--lr", "0.1", "--momentum",
                                "0.9", "--epochs", "3", "--min-params", "1000"});
  const int global = u.ranks * u.batch * u.accum;
  const Trained alone = trained(runs, train + Words{"--batch-size", std::to_string(global)});
  const int64_t updates = (u.samples + global - 1) / global;
  EXPECT_EQ(alone.losses.size(), static_cast<size_t>(3 * updates));
  const Words shares = {"--batch-size", std::to_string(u.batch), "--grad-accum",
                        std::to_string(u.accum)};
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "zero1"}) {
    SCOPED_TRACE(strategy);
    expect_near(trained(runs, train + shares + ranks(u.ranks) + Words{"--strategy", strategy}),
                alone);
  }
}

// One sample a forward, so that the scores are the same bits on any number of ranks.
TEST(Metrics, AreThoseOfOneRank) {
  const CheckpointRuns runs;
  const testing_data::TempFolder data;
  write_data(data, 10, {0, 3, 6, 9});
  const auto row_of = [&](int count) {
    const Finished run = Program::run(
        fsdp_run({"eval", fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--data",
                  data.path(), "--eval-data", data.path(), "--batch-size", "1", "--eval-metrics",
                  "accuracy,top2,f1,perplexity", "--metrics", runs / "eval.jsonl"}) +
        ranks(count));
    EXPECT_EQ(run.status, 0) << run.err;
    return rows_of(runs / "eval.jsonl", "eval").at(0);
  };
  const auto alone = row_of(1);
  for (const int count : {2, 3, 4}) {
    const auto row = row_of(count);
    for (const char* name : {"accuracy", "top2", "f1", "perplexity"}) {
      EXPECT_NEAR(row[name].get<double>(), alone[name].get<double>(), 1e-12) << name;
    }
  }
}

}  // namespace uneven_data_test
}  // namespace ofsdp
