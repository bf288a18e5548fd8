// --batch-weights through the real command: losses, evaluations and trained weights equal a run
// with equal parts. Holds under every strategy, with accumulation and short last batches, where
// samples meet samples of other ranks, and on two hosts. Checkpoints cross to other weights and
// numbers of ranks.
#include <cmath>

#include "importer/file/onnx_file.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/two_launchers.h"

namespace ofsdp {
namespace batch_weights_test {

using testing::HasSubstr;
using testing_data::npy;
using Json = nlohmann::json;

Words weights(const std::string& text) { return {"--batch-weights", text}; }

// 45 samples leave a short batch for each size below; every seventh label does not count.
class Data {
 public:
  Data() {
    std::vector<float> x;
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < 45; ++i) {
      for (int64_t j = 0; j < 20; ++j) x.push_back(std::sin(static_cast<float>(i * 7 + j * 3)));
      labels.push_back(i % 7 == 3 ? -100 : i % 3);
    }
    folder_.write("x.npy", npy("<f4", "(45, 20)", x));
    folder_.write("labels.npy", npy("<i8", "(45,)", labels));
  }
  std::string path() const { return folder_.path(); }

 private:
  testing_data::TempFolder folder_;
};

struct Numbers {
  std::vector<double> losses, evaluated;
  std::vector<float> weights;
  std::string out;
};

void read_weights(const std::string& path, Numbers& numbers) {
  const auto file = OnnxFile::open(path);
  ASSERT_TRUE(file.ok());
  for (const Initializer& weight : file->initializers()) {
    if (weight.dtype != DType::kFloat32) continue;
    std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
    EXPECT_TRUE(file->read(weight, 0, values).ok());
    numbers.weights.insert(numbers.weights.end(), values.begin(), values.end());
  }
}

void read_metrics(const std::string& metrics, Numbers& numbers) {
  numbers.losses = losses_of(metrics);
  for (const Json& row : rows_of(metrics, "eval")) {
    for (const char* name : {"loss", "accuracy", "top2", "f1"}) {
      const auto found = row.find(name);
      if (found != row.end() && found->is_number()) numbers.evaluated.push_back(*found);
    }
  }
  const Json end = rows_of(metrics, "end").at(0);
  EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes"));
}

Numbers trained(const CheckpointRuns& runs, const Words& words) {
  const std::string metrics = runs / "metrics.jsonl";
  std::filesystem::remove(metrics);
  runs.trained(words + Words{"--metrics", metrics, "--threads", "1", "--verbose"});
  Numbers numbers;
  numbers.out = runs.last().out;
  read_metrics(metrics, numbers);
  read_weights(runs / "trained.onnx", numbers);
  return numbers;
}

// `room`: for a sum in another order, relative for the loss and absolute for weights.
void expect_near(const Numbers& found, const Numbers& expected, double room = 1e-6) {
  ASSERT_FALSE(expected.losses.empty());
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], room * expected.losses[i]) << "step " << i + 1;
  }
  ASSERT_EQ(found.evaluated.size(), expected.evaluated.size());
  for (size_t i = 0; i < found.evaluated.size(); ++i) {
    EXPECT_NEAR(found.evaluated[i], expected.evaluated[i], room * 2) << "evaluation " << i;
  }
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t i = 0; i < found.weights.size(); ++i) {
    ASSERT_NEAR(found.weights[i], expected.weights[i], room * 2) << "weight " << i;
  }
}

Words train(const std::string& data) {
  return checkpointed_model() +
         Words{"--data",       data,  "--eval-data", data,  "--optimizer",    "sgd",
               "--lr",         "0.1", "--momentum",  "0.9", "--epochs",       "3",
               "--batch-size", "4",   "--timeout",   "20",  "--eval-metrics", "accuracy,top2,f1"};
}

struct Weighted {
  const char* given;
  const char* parts;  // for 4 samples a rank
};

class BatchWeightsTest : public testing::TestWithParam<Weighted> {
 protected:
  Words world() const {
    return ranks(1 + static_cast<int>(std::ranges::count(std::string(GetParam().given), ',')));
  }
};

INSTANTIATE_TEST_SUITE_P(Weights, BatchWeightsTest,
                         testing::Values(Weighted{"2,1", "5, 3"}, Weighted{"0.1,0.7", "1, 7"},
                                         Weighted{"3,1,2", "6, 2, 4"},
                                         Weighted{"5,1,1,3", "8, 2, 1, 5"}));

TEST_P(BatchWeightsTest, NumbersAreThoseOfEqualPartsUnderEveryStrategy) {
  const Data data;
  const CheckpointRuns runs;
  for (const char* accum : {"1", "3"}) {
    const Words command = train(data.path()) + world() + Words{"--grad-accum", accum};
    const Numbers equal = trained(runs, command);
    EXPECT_EQ(equal.evaluated.size(), 12u);
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "zero1"}) {
      SCOPED_TRACE(std::string(strategy) + " " + accum);
      const Numbers found =
          trained(runs, command + weights(GetParam().given) + Words{"--strategy", strategy});
      expect_near(found, equal);
      EXPECT_THAT(found.out, HasSubstr("--batch-weights: ranks get " +
                                       std::string(GetParam().parts) + " samples of each forward"));
    }
  }
}

TEST_P(BatchWeightsTest, NumbersAreThoseOfEqualPartsWithOtherOptions) {
  const Data data;
  const CheckpointRuns runs;
  const std::vector<Words> all = {{"--drop-last", "on", "--clip-grad-norm", "0.1"},
                                  {"--batch-size", "100"},
                                  {"--wrap", "none", "--lr-schedule", "cosine"},
                                  {"--no-shuffle", "--activation-checkpointing", "unit"}};
  for (const Words& more : all) {
    SCOPED_TRACE(joined(more, " "));
    const Words command = train(data.path()) + world() + more;
    expect_near(trained(runs, command + weights(GetParam().given)), trained(runs, command));
  }
}

// A rank's samples meet the samples of all others, whatever their number; a dropout value follows
// the sample.
TEST(JoinedBatchWeights, NumbersAreThoseOfEqualParts) {
  const CheckpointRuns runs;
  const Data data;
  const std::vector<Words> all = {
      fsdp_run({OFSDP_SOURCE_DIR "/tests/oracle/cases/residual/legacy.onnx", "--loss",
                "cross_entropy", "--sync-batch-norm", "on"}),
      fsdp_run({fixture("mlp/model.onnx"), "--loss", "contrastive:logits:logits:0.5", "--data",
                data.path(), "--eval-data", data.path()}),
      fsdp_run({sample_model("mnist/mnist.onnx"), "--data", "synthetic"})};
  for (const Words& model : all) {
    SCOPED_TRACE(joined(model, " "));
    const Words command =
        model + ranks(3) + Words{"--optimizer", "sgd",      "--lr", "0.05",         "--steps",
                                 "6",           "--epochs", "100",  "--batch-size", "4"};
    expect_near(trained(runs, command + weights("3,1,2")), trained(runs, command), 2e-5);
  }
}

TEST(HybridBatchWeights, CopiesMayHaveUnequalParts) {
  const Data data;
  const CheckpointRuns runs;
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"}) {
    const Words command =
        train(data.path()) + ranks(4) + Words{"--strategy", strategy, "--shard-size", "2"};
    const Numbers equal = trained(runs, command);
    expect_near(trained(runs, command + weights("5,1,1,3")), equal);
    expect_near(trained(runs, command + weights("5,1,1,3") + Words{"--shard-weights", "1,3"}),
                equal);
  }
}

TEST(HostsBatchWeights, NumbersAreThoseOfEqualParts) {
  const Data data;
  const CheckpointRuns runs;
  const auto two_hosts = [&](const Words& more) {
    const std::string metrics = runs / "metrics.jsonl", output = runs / "trained.onnx";
    std::filesystem::remove(metrics);
    std::filesystem::remove(output);
    TwoLaunchers both(train(data.path()) + more + Words{"--output", output, "--metrics", metrics},
                      2);
    EXPECT_EQ(both.first().wait(60).status, 0) << both.first().err();
    EXPECT_EQ(both.second().wait(60).status, 0) << both.second().err();
    Numbers numbers;
    read_metrics(metrics, numbers);
    read_weights(output, numbers);
    return numbers;
  };
  expect_near(two_hosts(weights("3,1,2")), two_hosts({}));
}

// Positions count samples, so a checkpoint fits any weights and any number of ranks.
TEST(ResumedBatchWeights, CheckpointsCrossToOtherWeightsAndWorlds) {
  const Data data;
  const Words command = train(data.path()) + Words{"--global-batch-size", "12", "--batch-size"};
  const Words rest = {"--epochs", "5", "--checkpoint-interval", "1step"};
  const CheckpointRuns plain;
  const Numbers expected = trained(plain, command + Words{"4"} + rest + ranks(3));
  ASSERT_EQ(expected.losses.size(), 20u);
  for (const auto& [world, batch, given] :
       {std::tuple(3, "4", "1,1,4"), {2, "6", "1,3"}, {2, "3", "2,1"}, {3, "4", "equal"}}) {
    SCOPED_TRACE(format_text("{} {}", world, given));
    const CheckpointRuns runs;
    Program killed(
        command + Words{"4"} + rest + ranks(3) + weights("3,1,2") + runs.saving() +
        Words{"--epochs", "1000000", "--log-interval", "1", "--keep-checkpoints", "1000"});
    ASSERT_TRUE(killed.until_output("step 10/", 30)) << killed.err();
    killed.signal(SIGKILL);
    killed.wait(10);
    for (const std::string& name : runs.checkpoints()) {
      if (name > "step-00000006") std::filesystem::remove_all(runs.dir() + "/" + name);
    }
    Numbers found = trained(
        runs, command + Words{batch} + rest + ranks(world) + weights(given) + runs.resuming());
    EXPECT_THAT(found.out, HasSubstr("step-00000006"));
    ASSERT_EQ(found.losses.size(), 14u);  // the rest of the second epoch, and three more
    Numbers later = expected;
    later.losses.erase(later.losses.begin(), later.losses.begin() + 6);
    later.evaluated.erase(later.evaluated.begin(), later.evaluated.begin() + 4);
    expect_near(found, later, 3e-6);
  }
}

TEST(EvaluatedBatchWeights, MetricsAreThoseOfEqualParts) {
  const Data data;
  const CheckpointRuns runs;
  const auto row_of = [&](const Words& more) {
    const Finished run =
        Program::run(fsdp_run({"eval", fixture("mlp/model.onnx"), "--loss", "cross_entropy",
                               "--data", data.path(), "--eval-data", data.path(), "--eval-metrics",
                               "accuracy,top2,f1,perplexity", "--metrics", runs / "eval.jsonl"}) +
                     ranks(3) + more);
    EXPECT_EQ(run.status, 0) << run.err;
    return rows_of(runs / "eval.jsonl", "eval").at(0);
  };
  const Json equal = row_of({});
  for (const char* given : {"3,1,2", "1,20,3"}) {
    const Json row = row_of(weights(given));
    for (const char* name : {"loss", "accuracy", "top2", "f1", "perplexity"}) {
      EXPECT_NEAR(row[name].get<double>(), equal[name].get<double>(), 1e-6) << name;
    }
  }
}

TEST(PlannedBatchWeights, ThePlanHasTheParts) {
  const Words command = fsdp_run({"plan", fixture("mlp/model.onnx"), "--loss", "cross_entropy",
                                  "--batch-size", "10", "--json"}) +
                        ranks(3);
  const Json plan = Json::parse(Program::run(command + weights("3,1,2")).out);
  EXPECT_EQ(plan.at("batch_of_ranks"), Json::parse("[15, 5, 10]"));
  const Json equal = Json::parse(Program::run(command + weights("7,7,7")).out);
  EXPECT_FALSE(equal.contains("batch_of_ranks"));
  const Json larger = Json::parse(Program::run(command + Words{"--batch-size", "15"}).out);
  const auto arena = [](const Json& of) {
    int64_t most = 0;
    for (const Json& one : of.at("programs")) most = std::max<int64_t>(most, one["arena_bytes"]);
    return most;
  };
  EXPECT_EQ(arena(plan), arena(larger));
  EXPECT_GT(arena(plan), arena(equal));
}

TEST(WrongBatchWeights, AreOneLine) {
  const std::pair<Words, const char*> wrong[] = {
      {weights("2,1,1"), "--batch-weights: expected 2 weights, one for each rank, found 3"},
      {weights("2,0"), "--batch-weights: expected equal or a number above 0 for each rank"},
      {weights("2,inf"), "--batch-weights: expected equal or a number above 0 for each rank"},
      {weights("auto"), "--batch-weights: expected equal or a number above 0 for each rank"},
      {weights("20,1"), "--batch-weights: rank 1 gets none of the 8 samples of a forward"},
      {weights("2,1") + Words{"--deterministic", "across_ranks"},
       "--batch-weights: --deterministic across_ranks cuts a batch into equal slices"},
      {weights("2,1") + Words{"--loss-mean", "per_rank"},
       "--batch-weights: --loss-mean per_rank weighs ranks equally"},
      {weights("2,1") + Words{"--bucket-by", "x"},
       "--batch-weights: --bucket-by cuts rows for batches of one size"}};
  for (const auto& [words, line] : wrong) {
    const Finished run = Program::run(checkpointed_model() + ranks(2) +
                                      Words{"--steps", "1", "--batch-size", "4"} + words);
    EXPECT_EQ(run.status, 2) << joined(words, " ");
    EXPECT_THAT(run.err, HasSubstr(line));
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
  }
}

}  // namespace batch_weights_test
}  // namespace ofsdp
