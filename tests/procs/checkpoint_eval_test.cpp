// `eval --resume CHECKPOINT` needs only the weights: no option of the training run. The loss
// equals the evaluation during training, and the loss of the trained file, read without a
// checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/checkpoint_runs.h"

namespace ofsdp {
namespace checkpoint_eval_test {

struct Evaluation {
  double loss = NAN, accuracy = NAN;
};

Words evaluated() {
  return {"--data", fixture("mlp/data"), "--eval-data", fixture("mlp/data"), "--batch-size", "9"};
}

Evaluation last_row(const std::string& metrics) {
  const auto rows = rows_of(metrics, "eval");
  if (rows.empty()) return {};
  return {rows.back().at("loss"), rows.back().at("accuracy")};
}

class CheckpointEvalTest : public testing::TestWithParam<std::string> {
 protected:
  // Trains with `how` and with words that no evaluation repeats.
  Evaluation train(const Words& how, int count) const {
    const std::string metrics = runs_ / "train.jsonl";
    runs_.trained(checkpointed_model() + how + evaluated() + ranks(count) + runs_.saving() +
                  Words{"--epochs", "2", "--metrics", metrics, "--lr", "0.01"});
    return last_row(metrics);
  }

  Evaluation eval(const std::string& model, const Words& more, int count) const {
    const std::string metrics = runs_ / "eval.jsonl";
    std::filesystem::remove(metrics);
    const Finished run =
        Program::run(fsdp_run({"eval", model, "--loss", "cross_entropy", "--metrics", metrics}) +
                     evaluated() + more + ranks(count));
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.err, "");
    return last_row(metrics);
  }

  std::vector<float> predict(const std::string& model, const Words& more) const {
    const std::string rows = runs_ / "rows.npy";
    std::filesystem::remove(rows);
    const Finished run = Program::run(
        fsdp_run({"predict", model, "--data", fixture("mlp/data"), "-o", rows}) + more);
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.err, "");
    const std::string bytes = onnx_bytes::content(rows);
    const size_t begin = bytes.find('\n') + 1;  // after the header
    std::vector<float> values((bytes.size() - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(float));
    return values;
  }

  // Exports the latest checkpoint and returns the file's bytes.
  std::string exported(const Words& more) const {
    const std::string file = runs_ / "exported.onnx";
    const Finished run = Program::run(fsdp_run({"export", runs_.dir(), "-o", file}) + more);
    EXPECT_EQ(run.status, 0) << run.err;
    return onnx_bytes::content(file);
  }

  double checked_loss(const std::string& model, const Words& more) const {
    const Finished run = Program::run(
        fsdp_run({"check", model, "--loss", "cross_entropy", "--data", fixture("mlp/data"),
                  "--batch-size", "4", "--no-shuffle", "--directions", "1", "--json"}) +
        more);
    EXPECT_EQ(run.status, 0) << run.err;
    return run.status == 0 ? nlohmann::json::parse(run.out).at("loss").at(0).get<double>() : NAN;
  }

  Words latest() const { return runs_.resuming(); }

  CheckpointRuns runs_;
};

Words split(const std::string& text) {
  Words words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

INSTANTIATE_TEST_SUITE_P(Options, CheckpointEvalTest,
                         testing::Values("--optimizer sgd", "--optimizer sgd --momentum 0.9",
                                         "--optimizer lion", "--optimizer adafactor",
                                         "--optimizer muon", "--ema 0.9",
                                         "--optimizer lion --ema 0.5 --state-dtype int8",
                                         "--freeze *bias", "--train *weight",
                                         "--group *weight:optimizer=lion,lr=0.001",
                                         "--seed 5 --no-shuffle --checkpoint-type full",
                                         "--checkpoint-type local --strategy no_shard --ema 0.9",
                                         "--lora all --lora-rank 2", "--replace-head 10"));

TEST_P(CheckpointEvalTest, IsThatOfTheTraining) {
  const Evaluation expected = train(split(GetParam()), 2);
  ASSERT_TRUE(std::isfinite(expected.loss));
  for (const int count : {1, 2, 3}) {
    const Evaluation found = eval(fixture("mlp/model.onnx"), latest(), count);
    EXPECT_NEAR(found.loss, expected.loss, 2e-6 * expected.loss) << count;
    EXPECT_EQ(found.accuracy, expected.accuracy) << count;
  }
  const Evaluation file = eval(runs_ / "trained.onnx", {}, 1);
  EXPECT_NEAR(file.loss, expected.loss, 1e-5 * expected.loss);
  const Evaluation before = eval(fixture("mlp/model.onnx"), {}, 1);
  EXPECT_GT(std::abs(before.loss - expected.loss), 1e-3) << "nothing was trained";
  const std::vector<float> rows = predict(runs_ / "trained.onnx", {});
  const std::vector<float> saved = predict(fixture("mlp/model.onnx"), latest());
  ASSERT_EQ(saved.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(saved[i], rows[i], 1e-4) << i;
  EXPECT_TRUE(exported({}) == onnx_bytes::content(runs_ / "trained.onnx")) << "export";
}

TEST_F(CheckpointEvalTest, CheckTakesTheCheckpoint) {
  train({"--optimizer", "sgd"}, 1);
  const std::string model = fixture("mlp/model.onnx");
  const double expected = checked_loss(runs_ / "trained.onnx", {});
  EXPECT_NEAR(checked_loss(model, latest()), expected, 1e-6);
  EXPECT_NEAR(checked_loss(model, {"--resume", runs_ / "trained.onnx"}), expected, 1e-6);
  EXPECT_GT(std::abs(checked_loss(model, {}) - expected), 1e-3);
  for (const char* command : {"check", "doctor", "plan", "predict"}) {
    const Finished run = Program::run(
        fsdp_run({command, model, "--data", fixture("mlp/data"), "--resume", "nothing"}) +
        (std::string(command) == "predict" ? Words{"-o", runs_ / "none.npy"}
                                           : Words{"--loss", "cross_entropy"}));
    EXPECT_EQ(run.status, 2) << command;
    EXPECT_THAT(run.err, testing::HasSubstr("--resume")) << command;
  }
}

// Training evaluates the average; --ema-use off asks for the weights.
TEST_F(CheckpointEvalTest, EmaUseOffTakesTheWeights) {
  const Evaluation expected = train({"--ema", "0.9", "--ema-use", "off"}, 2);
  const Evaluation weights =
      eval(fixture("mlp/model.onnx"), latest() + Words{"--ema-use", "off"}, 1);
  const Evaluation average = eval(fixture("mlp/model.onnx"), latest(), 1);
  EXPECT_NEAR(weights.loss, expected.loss, 2e-6 * expected.loss);
  EXPECT_TRUE(exported({"--ema-use", "off"}) == onnx_bytes::content(runs_ / "trained.onnx"));
  EXPECT_FALSE(exported({}) == onnx_bytes::content(runs_ / "trained.onnx"));
  EXPECT_GT(std::abs(average.loss - expected.loss), 1e-3);
}

// One set of rows is enough, under either name; a file has no step and no optimizer.
TEST_F(CheckpointEvalTest, TakesOneDataSetOfEitherName) {
  const std::string data = fixture("mlp/data"), metrics = runs_ / "eval.jsonl";
  const std::string both = runs_ / "both.yaml";
  std::ofstream(both) << "train:\n  x: {file: none.npy}\neval:\n"
                      << "  x: {file: " << data << "/x.npy}\n"
                      << "  labels: {file: " << data << "/labels.npy}\n";
  std::filesystem::create_directory(runs_ / "alone");
  std::filesystem::copy(fixture("mlp/model.onnx"), runs_ / "alone/model.onnx");
  double expected = NAN;
  for (const Words& words : {Words{"--data", data, "--eval-data", data}, Words{"--data", data},
                             Words{"--eval-data", data}, Words{"--data", both}}) {
    for (const int count : {1, 2}) {
      std::filesystem::remove(metrics);
      const Finished run = Program::run(fsdp_run({"eval", runs_ / "alone/model.onnx", "--loss",
                                                  "cross_entropy", "--metrics", metrics}) +
                                        words + ranks(count));
      ASSERT_EQ(run.status, 0) << run.err;
      EXPECT_THAT(run.out, testing::Not(testing::HasSubstr("step")));
      EXPECT_THAT(run.out, testing::Not(testing::HasSubstr("optimizer state")));
      EXPECT_THAT(run.out, testing::HasSubstr("eval  loss "));
      const double loss = last_row(metrics).loss;
      if (std::isnan(expected)) expected = loss;
      EXPECT_NEAR(loss, expected, 2e-6 * expected);
    }
  }
}

// A checkpoint of another graph does not fit this model.
TEST_F(CheckpointEvalTest, OfAnotherGraphIsRefused) {
  train({"--optimizer", "sgd"}, 1);
  const Finished run = Program::run(fsdp_run({"eval", fixture("mlp/model_with_loss.onnx")}) +
                                    evaluated() + latest());
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, testing::HasSubstr("it is of another graph than"));
}

}  // namespace checkpoint_eval_test
}  // namespace ofsdp
