// A run reports requests that it has not fulfilled, in one line and in the rows: updates that
// float16 skips, evaluations without a label, settings that differ from the checkpoint. And the
// loss covers the global batch if a node in the graph sums it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>

#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace undone_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using nlohmann::json;
using testing::HasSubstr;
using testing_data::npy;

std::vector<json> step_rows(const Words& words, Finished* finished = nullptr) {
  const Folder folder;
  const Finished run = Program::run(words + Words{"--metrics", folder / "m.jsonl"});
  if (finished != nullptr) *finished = run;
  if (finished == nullptr) {
    EXPECT_EQ(run.status, 0) << run.err;
  }
  return rows_of(folder / "m.jsonl", "step");
}

// ---- float16 ----

// Targets large enough that the first scaled gradients overflow.
class LargeTargets : public ModelFolder {
 public:
  LargeTargets() {
    std::vector<float> targets;
    for (size_t i = 0; i < 36; ++i) targets.push_back(3000 * (static_cast<float>(i % 7) - 2.5f));
    write("data/labels.npy", npy("<f4", "(12, 3)", targets));
  }
  Words run(int steps, const Words& more = {}) const {
    return fsdp_run({model(), "--data", *this / "data", "--loss", "mse", "--lr", "1e-2",
                     "--param-dtype", "float16", "--batch-size", "4", "--steps",
                     std::to_string(steps)}) +
           more;
  }
};

const Words kCosine{"--lr-schedule", "cosine", "--warmup-steps", "3", "--total-steps", "20"};

// lr-schedule cosine, for update s from 0.
double cosine_rate(int64_t s) {
  if (s < 3) return 1e-2 * static_cast<double>(s + 1) / 3;
  return 1e-2 * (1 + std::cos(std::numbers::pi * static_cast<double>(s - 3) / 17)) / 2;
}

// Checks that each row's rate counts only the updates made before.
int64_t expect_rates_wait(const std::vector<json>& rows) {
  int64_t made = 0, skipped = 0;
  for (const json& row : rows) {
    EXPECT_NEAR(row.at("lr").get<double>(), cosine_rate(made), 1e-15) << row;
    EXPECT_EQ(row.contains("skipped"), row.at("grad_norm").is_null()) << row;
    const bool skips = row.value("skipped", false);
    made += skips ? 0 : 1;
    skipped += skips ? 1 : 0;
  }
  EXPECT_GT(skipped, 2);
  EXPECT_GT(made, 2);
  return skipped;
}

TEST(SkippedUpdates, AreInTheRowsAndTheScheduleWaits) {
  const LargeTargets folder;
  for (const Words& more : {ranks(1), ranks(2) + Words{"--strategy", "no_shard"},
                            ranks(2) + Words{"--grad-accum", "2"}}) {
    Finished run;
    const std::vector<json> rows = step_rows(folder.run(20, kCosine + more), &run);
    ASSERT_EQ(run.status, 0) << run.err;
    ASSERT_EQ(rows.size(), 20u);
    const int64_t skipped = expect_rates_wait(rows);
    EXPECT_THAT(run.out, HasSubstr(format_text("done: 20 updates ({} skipped", skipped)));
  }
}

TEST(SkippedUpdates, TheEndRowCountsThem) {
  const LargeTargets folder;
  const Finished run = Program::run(folder.run(4, {"--metrics", folder / "m.jsonl"}));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(rows_of(folder / "m.jsonl", "end").at(0).at("skipped"), 4);
}

TEST(SkippedUpdates, TheScheduleGoesOnWhereACheckpointWas) {
  const LargeTargets folder;
  const Words saving = kCosine + Words{"--checkpoint-dir", folder / "ck"};
  std::vector<json> rows = step_rows(folder.run(12, saving));
  const std::vector<json> rest = step_rows(folder.run(20, saving + Words{"--resume", "latest"}));
  rows.insert(rows.end(), rest.begin(), rest.end());
  ASSERT_EQ(rows.size(), 20u);
  expect_rates_wait(rows);
}

// A device gives the host an update's numbers one update late.
TEST(SkippedUpdates, ADeviceTakesTheSameRates) {
  const LargeTargets folder;
  for (const Words& more :
       {Words{}, Words{"--grad-accum", "2", "--clip-grad-norm", "1"}, Words{"--optimizer", "lamb"},
        Words{"--cpu-offload", "optimizer"}, ranks(2)}) {
    SCOPED_TRACE(joined(more, " "));
    const Words words = folder.run(20, kCosine + Words{"--nproc-per-node", "1"} + more);
    const Trained cpu = on_cpu(words), device = on_counting_device(words);
    expect_same_bits(cpu, device);
    expect_rates_wait(device.rows);
  }
  expect_checkpoints_of_both(folder.run(1, kCosine), 12, 20);
}

// y = w where w <= 0, sqrt(w) elsewhere: w's gradient is NaN, the loss is not.
std::string where_of_a_root() {
  SmallModel model;
  model.nodes = {
      node("Greater", {"w", "zero"}, {"m"}, "greater"), node("Sqrt", {"w"}, {"s"}, "root"),
      node("Where", {"m", "s", "w"}, {"y"}, "choose"), node("Mul", {"x", "y"}, {"o"}, "times"),
      node("ReduceSum", {"o"}, {"loss"}, "sum") +
          message(5, message(1, "keepdims") + number(3, 0) + number(20, 2))};
  model.initializers = {tensor("w", kFloat, {4}, raw<float>({-1, -4, -2, -3})),
                        tensor("zero", kFloat, {1}, raw<float>({0}))};
  model.inputs = {declared("x", {-1, 4})};
  model.outputs = {declared("loss", {})};
  return model.bytes();
}

TEST(SkippedUpdates, EndTheRunWhenTheScaleCanFallNoFurther) {
  const ModelFolder folder;
  folder.write("model.onnx", where_of_a_root());
  const Words words =
      fsdp_run({folder.model(), "--data", folder / "data", "--loss", "output:loss", "--optimizer",
                "sgd", "--lr", "0.1", "--batch-size", "1", "--steps", "40", "--train", "w",
                "--output", folder.output(), "--param-dtype", "float16"});
  // 2^16 falls to 1 in 16 updates.
  expect_refused(folder, words,
                 {folder.model(), "step 17", "rank 0", "scale", " 1 ", "node 'root'"},
                 {.status = 1});
}

// ---- A NaN in a gradient ----

// y = sqrt(w) * zero with w = 0: every value in forward is finite, 0 times infinity is not.
std::string root_of_zero() {
  SmallModel model;
  model.nodes = {node("Sqrt", {"w"}, {"s"}, "root"), node("Mul", {"s", "zero"}, {"y"}, "choose"),
                 node("Mul", {"x", "y"}, {"o"}, "times"),
                 node("ReduceMean", {"o"}, {"loss"}, "mean") +
                     message(5, message(1, "keepdims") + number(3, 0) + number(20, 2))};
  model.initializers = {tensor("w", kFloat, {4}, raw<float>({1, 0, 2, 3})),
                        tensor("zero", kFloat, {4}, raw<float>({1, 0, 1, 1}))};
  model.inputs = {declared("x", {-1, 4})};
  model.outputs = {declared("loss", {})};
  return model.bytes();
}

TEST(NanGradient, NamesTheNodeThatMadeItBeforeAWeightIsSpoiled) {
  const ModelFolder folder;
  const Words words =
      fsdp_run({folder.model(), "--data", folder / "data", "--optimizer", "sgd", "--lr", "0.1",
                "--batch-size", "1", "--steps", "4", "--train", "w", "--output", folder.output()});
  folder.write("model.onnx", where_of_a_root());
  expect_refused(folder, words,
                 {folder.model(), "gradient of 'w' is NaN", "step 1", "node 'root' (Sqrt)"},
                 {.status = 1});
  expect_refused(folder, words + Words{"--clip-grad-norm", "1"},
                 {"norm of the gradients is NaN", "step 1", "rank 0", "node 'root' (Sqrt)"},
                 {.status = 1});
  folder.write("model.onnx", root_of_zero());
  for (const Words& more :
       {Words{}, Words{"--strategy", "no_shard"}, Words{"--clip-grad-norm", "1"}}) {
    expect_refused(folder, words + more, {"NaN", "step 1", "node 'root"}, {.status = 1});
  }
}

// ---- Evaluations without a label ----

class Unlabelled : public ModelFolder {
 public:
  Unlabelled() {
    write("eval/x.npy", linear_inputs(4));
    write("eval/labels.npy", npy("<i8", "(4,)", std::vector<int64_t>(4, -100)));
  }
  Words run(const Words& more) const {
    return fsdp_run({model(), "--data", *this / "data", "--eval-data", *this / "eval", "--loss",
                     "cross_entropy", "--epochs", "6", "--metrics", *this / "m.jsonl"}) +
           more;
  }
};

TEST(Unlabelled, TheLossIsNullAndNeverABetterOne) {
  const Unlabelled folder;
  for (const int count : {1, 2}) {
    std::filesystem::remove_all(folder / "ck");
    const Finished run = Program::run(folder.run(
        ranks(count) + Words{"--keep-best", "loss", "--early-stop", "2", "--checkpoint-dir",
                             folder / "ck", "--eval-metrics", "accuracy,perplexity"}));
    EXPECT_EQ(run.status, 0);
    expect_one_line(run.err, {"warning", "evaluation", "loss", "accuracy", "perplexity"});
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_THAT(run.out, HasSubstr("loss: no label"));
    const std::vector<json> rows = rows_of(folder / "m.jsonl", "eval");
    ASSERT_EQ(rows.size(), 2u) << "--early-stop 2";
    for (const json& row : rows) {
      for (const char* name : {"loss", "accuracy", "perplexity"})
        EXPECT_TRUE(row.at(name).is_null());
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "ck/best"));
  }
}

// ---- a global batch, cut in any way ----

// A class with weight 0 adds nothing to the divisor, but with smoothing to the loss; a teacher's
// divergence counts rows.
TEST(CutBatch, ClassesThatWeighNothingCountAlikeInEveryMicroBatch) {
  const ModelFolder folder;
  folder.write("teacher.onnx", linear_model().bytes());
  std::vector<int64_t> labels{1, 1, 1, 0, 0, 2, 2, 1, 1, 1, -100, 0};
  folder.write("data/labels.npy", npy("<i8", "(12,)", labels));
  const Words smoothed{"--label-smoothing", "0.2"},
      taught{"--teacher", folder / "teacher.onnx", "--distill-weight", "0.5"};
  for (const Words& more : {smoothed, taught, smoothed + taught}) {
    std::vector<double> whole;
    for (const char* batch : {"12", "4", "1"}) {
      for (const int n : {1, 3}) {
        if (n == 3 && std::string(batch) == "12") continue;
        SCOPED_TRACE(joined(more, " ") + ", " + batch + ", " + std::to_string(n));
        const auto rows =
            step_rows(fsdp_run({folder.model(), "--data", folder / "data", "--loss",
                                "cross_entropy", "--class-weights", "1,0,4", "--optimizer", "sgd",
                                "--lr", "0.5", "--no-shuffle", "--batch-size", batch,
                                "--global-batch-size", "12", "--steps", "3"}) +
                      ranks(n) + more);
        ASSERT_EQ(rows.size(), 3u);
        for (size_t i = 0; i < 3; ++i) {
          const double loss = rows[i].at("loss");
          if (whole.size() < 3) whole.push_back(loss);
          EXPECT_NEAR(loss, whole[i], 2e-6);
        }
      }
    }
  }
}

TEST(CutBatch, AnEvaluationOfClassesThatWeighNothingIsThatOfAllRows) {
  const ModelFolder folder;
  folder.write("data/labels.npy",
               npy("<i8", "(12,)", std::vector<int64_t>{1, 1, 1, 0, 0, 2, 2, 1, 1, 1, -100, 0}));
  std::vector<double> found;
  for (const char* batch : {"12", "5", "1"}) {
    const Finished run =
        Program::run(fsdp_run({"eval", folder.model(), "--data", folder / "data", "--loss",
                               "cross_entropy", "--class-weights", "1,0,4", "--label-smoothing",
                               "0.2", "--batch-size", batch, "--metrics", folder / "m.jsonl"}));
    ASSERT_EQ(run.status, 0) << run.err;
    found.push_back(rows_of(folder / "m.jsonl", "eval").at(0).at("loss"));
    EXPECT_NEAR(found.back(), found[0], 2e-6);
  }
}

// ---- evaluations ----

TEST(EarlyStop, AResumedRunStopsWhereTheUndisturbedOneDoes) {
  const ModelFolder folder;
  std::vector<int64_t> other{2, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 0};
  folder.write("eval/x.npy", linear_inputs());
  folder.write("eval/labels.npy", npy("<i8", "(12,)", other));
  const auto run = [&](const std::string& steps, const Words& more) {
    const Finished finished = Program::run(
        fsdp_run({folder.model(), "--data", folder / "data", "--eval-data", folder / "eval",
                  "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5", "--batch-size",
                  "4", "--steps", steps, "--early-stop", "3", "--metrics", folder / "m.jsonl"}) +
        more);
    EXPECT_EQ(finished.status, 0) << finished.err;
    return rows_of(folder / "m.jsonl", "eval");
  };
  const size_t undisturbed = run("60", {}).size();
  ASSERT_LT(undisturbed, 20u);
  std::filesystem::remove(folder / "m.jsonl");
  const Words saving{"--checkpoint-dir", folder / "ck", "--resume", "latest"};
  size_t resumed = 0;
  for (int epoch = 1; epoch <= 12; ++epoch) resumed = run(std::to_string(3 * epoch), saving).size();
  EXPECT_EQ(resumed, undisturbed);
}

// A loss without classes has no accuracy, so no evaluation would ever be better.
TEST(EarlyStop, AccuracyThatNothingMeasuresIsRefused) {
  const ModelFolder folder;
  folder.write("data/labels.npy", npy("<f4", "(12, 3)", std::vector<float>(36, 1)));
  expect_refused(folder,
                 folder.train() + Words{"--loss", "bce_with_logits", "--eval-data", folder / "data",
                                        "--keep-best", "accuracy", "--early-stop", "2"},
                 {"--keep-best accuracy", "bce_with_logits"});
}

// One that is asked for by name is refused as any other metric; the default may be silent.
TEST(Metrics, ThoseThatALossDoesNotHaveAreRefused) {
  const ModelFolder folder;
  folder.write("data/labels.npy", npy("<f4", "(12, 3)", std::vector<float>(36, 1)));
  const auto words = [&](const char* loss) {
    return folder.train() + Words{"--loss", loss, "--eval-data", folder / "data"};
  };
  for (const char* list : {"accuracy", "f1,accuracy"}) {
    expect_refused(folder, words("bce_with_logits") + Words{"--eval-metrics", list},
                   {"--eval-metrics accuracy", "bce_with_logits", "f1,auc"});
  }
  expect_refused(folder, words("mse") + Words{"--eval-metrics", "rmse,accuracy"},
                 {"--eval-metrics accuracy", "mse", "rmse,mae,r2"});
  for (const char* name : {"rmse", "mae", "r2"}) {
    expect_refused(folder, words("bce_with_logits") + Words{"--eval-metrics", name},
                   {format_text("--eval-metrics {}", name), "logits", "f1,auc"});
  }
  expect_trains(folder, {"--loss", "mse", "--eval-data", folder / "data"});
}

// One class alone has no area under a curve.
TEST(Unlabelled, AMetricThatIsNotDefinedIsNeverTheBest) {
  const Unlabelled folder;
  folder.write("eval/labels.npy", npy("<f4", "(4, 3)", std::vector<float>(12, 1)));
  folder.write("data/labels.npy", npy("<f4", "(12, 3)", std::vector<float>(36, 1)));
  const Finished run =
      Program::run(folder.run({"--loss", "bce_with_logits", "--keep-best", "auc", "--eval-metrics",
                               "auc", "--checkpoint-dir", folder / "ck", "--early-stop", "1"}));
  EXPECT_EQ(run.status, 0);
  expect_one_line(run.err, {"warning", "auc"});
  const std::vector<json> rows = rows_of(folder / "m.jsonl", "eval");
  ASSERT_EQ(rows.size(), 1u) << "--early-stop 1";
  EXPECT_TRUE(rows[0].at("auc").is_null());
  EXPECT_FALSE(rows[0].at("loss").is_null());
  EXPECT_FALSE(std::filesystem::exists(folder / "ck/best"));
}

TEST(Unlabelled, AnUpdateWithoutALabelHasLoss0) {
  const Unlabelled folder;
  const std::vector<json> rows = step_rows(fsdp_run(
      {folder.model(), "--data", folder / "eval", "--loss", "cross_entropy", "--steps", "1"}));
  EXPECT_EQ(rows.at(0).at("loss"), 0);
  EXPECT_EQ(rows.at(0).at("grad_norm"), 0);
}

// ---- Another part of a run ----

class Resumed : public ModelFolder {
 public:
  explicit Resumed(const Words& first) : first_(first) {
    EXPECT_EQ(Program::run(run({"--steps", "3"}) + first_).status, 0);
  }
  Words run(const Words& more) const {
    return fsdp_run({model(), "--data", *this / "data", "--loss", "cross_entropy", "--batch-size",
                     "4", "--checkpoint-dir", *this / "ck"}) +
           more;
  }
  // stderr of a run that goes on from a copy of the checkpoint.
  std::string err(const Words& more) const {
    std::filesystem::remove_all(*this / "copy");
    std::filesystem::copy(*this / "ck", *this / "copy", std::filesystem::copy_options::recursive);
    const Finished done = Program::run(run({"--steps", "5", "--resume", "latest"}) + more +
                                       Words{"--checkpoint-dir", *this / "copy"});
    EXPECT_EQ(done.status, 0) << done.err;
    return done.err;
  }

 private:
  Words first_;
};

TEST(ResumedSettings, AreComparedWithTheCheckpoints) {
  const Resumed folder({"--lr", "0.05"});
  EXPECT_EQ(folder.err({"--lr", "0.05"}), "");
  EXPECT_EQ(folder.err({"--lr", "0.05", "--nproc-per-node", "2", "--batch-size", "2"}), "");
  const std::string err =
      folder.err({"--lr", "5", "--weight-decay", "0.5", "--betas", "0.5,0.9", "--label-smoothing",
                  "0.5", "--clip-grad-norm", "1", "--lr-schedule", "inverse_sqrt"});
  expect_one_line(err, {"warning", "lr 5", "(was 0.05)", "weight_decay 0.5 (was 0.01)",
                        "betas [0.5, 0.9] (was [0.9, 0.999])", "label_smoothing 0.5 (was 0)",
                        "clip_grad_norm 1 (was off)", "lr_schedule inverse_sqrt (was constant)"});
  EXPECT_EQ(lines_of(err).size(), 1u) << err;
  expect_one_line(folder.err({"--lr", "0.05", "--batch-size", "6"}),
                  {"global_batch_size 6 (was 4)"});
}

TEST(ResumedSettings, AScheduleThatFollowsTheLength) {
  const Resumed folder({"--lr-schedule", "cosine"});
  expect_one_line(folder.err({"--lr-schedule", "cosine"}),
                  {"steps 5 (was 3", "lr_schedule follows"});
  EXPECT_EQ(lines_of(folder.err({"--lr-schedule", "linear"})).size(), 1u);
  const Resumed fixed({"--lr-schedule", "cosine", "--total-steps", "5"});
  EXPECT_EQ(fixed.err({"--lr-schedule", "cosine", "--total-steps", "5"}), "");
  std::filesystem::remove(fixed / "ck/step-00000003/config.yaml");
  expect_one_line(fixed.err({"--lr-schedule", "cosine", "--total-steps", "5"}),
                  {"warning", "no config.yaml"});
}

// ---- Labels ----

// As pandas and many tables write them.
TEST(FloatLabels, AreClassesIfTheyAreWholeNumbers) {
  const ModelFolder folder;
  const Words words = fsdp_run({folder.model(), "--loss", "cross_entropy", "--no-shuffle",
                                "--steps", "3", "--batch-size", "4", "--data", folder / "data"});
  const std::vector<json> whole = step_rows(words);
  std::vector<float> labels;
  for (size_t i = 0; i < 12; ++i) labels.push_back(static_cast<float>(i * i % 3));
  folder.write("data/labels.npy", npy("<f4", "(12,)", labels));
  const std::vector<json> floats = step_rows(words);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(floats.at(i).at("loss"), whole.at(i).at("loss"));
  labels[5] = 0.5;
  folder.write("data/labels.npy", npy("<f4", "(12,)", labels));
  expect_refused(folder, {"labels", "sample 5", "expected a class", "found 0.5"});
  labels[5] = 7;
  folder.write("data/labels.npy", npy("<f4", "(12,)", labels));
  expect_refused(folder, {"labels", "sample 5", "0..2", "found 7"});
}

// ---- A loss node that sums ----

struct SumCase {
  const char* op = "SoftmaxCrossEntropyLoss";
  bool weights = false;
  int64_t ignored = -100;
  bool casts = false;  // Identity and Cast follow
};

constexpr std::array<float, 3> kClassWeights{0.5f, 2.f, 0.25f};

std::string summing(const SumCase& c) {
  SmallModel model = linear_model();
  std::string scores = "logits";
  if (std::string(c.op) == "NegativeLogLikelihoodLoss") {
    model.nodes.push_back(node("LogSoftmax", {"logits"}, {"logs"}, "logs") +
                          message(5, message(1, "axis") + number(3, 1) + number(20, 2)));
    scores = "logs";
  }
  const std::string made = c.casts ? "made" : "loss";
  std::vector<std::string> inputs{scores, "labels"};
  if (c.weights) inputs.push_back("class_weights");
  model.nodes.push_back(node(c.op, inputs, {made}, "summed") +
                        message(5, message(1, "reduction") + message(4, "sum") + number(20, 3)) +
                        message(5, message(1, "ignore_index") +
                                       number(3, static_cast<uint64_t>(c.ignored)) +
                                       number(20, 2)));
  if (c.casts) {
    model.nodes.push_back(node("Identity", {"made"}, {"same"}, "same"));
    model.nodes.push_back(node("Cast", {"same"}, {"loss"}, "cast") +
                          message(5, message(1, "to") + number(3, 1) + number(20, 2)));
  }
  if (c.weights) {
    model.initializers.push_back(
        tensor("class_weights", kFloat, {3},
               raw(std::vector<float>(kClassWeights.begin(), kClassWeights.end()))));
  }
  model.inputs.push_back(declared("labels", {-1}, kInt64));
  model.outputs = {declared("loss", {})};
  return model.bytes();
}

struct SumRight {
  double loss = 0, norm = 0;
};

// The sum over the first 8 rows of linear_inputs and the gradient norm, by plain loops.
SumRight right_sum(const SumCase& c) {
  const std::vector<float> w = linear_weights();
  const std::array<double, 3> b{0.5, 0, -0.5};
  std::array<double, 15> gradient{};
  SumRight right;
  for (size_t row = 0; row < 8; ++row) {
    const auto label = static_cast<int64_t>(row * row % 3);
    if (label == c.ignored) continue;
    std::array<double, 4> x{};
    std::array<double, 3> z = b;
    for (size_t i = 0; i < 4; ++i) {
      x[i] = static_cast<double>((row * 4 + i) * 7 % 11) / 8 - 0.5;
      for (size_t k = 0; k < 3; ++k) z[k] += x[i] * static_cast<double>(w[i * 3 + k]);
    }
    const double all = std::exp(z[0]) + std::exp(z[1]) + std::exp(z[2]);
    const auto chosen = static_cast<size_t>(label);
    const double weight = c.weights ? static_cast<double>(kClassWeights[chosen]) : 1;
    right.loss += weight * (std::log(all) - z[chosen]);
    for (size_t k = 0; k < 3; ++k) {
      const double d = weight * (std::exp(z[k]) / all - (k == chosen ? 1 : 0));
      for (size_t i = 0; i < 4; ++i) gradient[i * 3 + k] += d * x[i];
      gradient[12 + k] += d;
    }
  }
  for (const double g : gradient) right.norm += g * g;
  right.norm = std::sqrt(right.norm);
  return right;
}

TEST(SummedLoss, IsTheSumOverTheGlobalBatchOnAnySplit) {
  const SumCase cases[] = {{},
                           {.ignored = 1},
                           {.weights = true, .ignored = 0, .casts = true},
                           {.op = "NegativeLogLikelihoodLoss"},
                           {.op = "NegativeLogLikelihoodLoss", .weights = true, .ignored = 2}};
  const Words splits[] = {{"--batch-size", "8"},
                          {"--batch-size", "4", "--nproc-per-node", "2"},
                          {"--batch-size", "2", "--grad-accum", "4"},
                          {"--global-batch-size", "8", "--nproc-per-node", "4"},
                          {"--batch-size", "2", "--grad-accum", "2", "--nproc-per-node", "2",
                           "--loss-mean", "per_rank"},
                          {"--global-batch-size", "8", "--deterministic", "across_ranks"}};
  const ModelFolder folder;
  for (const SumCase& c : cases) {
    folder.write("model.onnx", summing(c));
    const SumRight right = right_sum(c);
    for (const Words& split : splits) {
      SCOPED_TRACE(joined(split, " "));
      const Finished run = Program::run(
          fsdp_run({folder.model(), "--data", folder / "data", "--eval-data", folder / "data",
                    "--train", "w", "--train", "b", "--no-shuffle", "--steps", "1", "--optimizer",
                    "sgd", "--lr", "0", "--metrics", folder / "m.jsonl"}) +
          split);
      ASSERT_EQ(run.status, 0) << run.err;
      EXPECT_THAT(run.out, HasSubstr("loss: the sum over the labels of 'labels'"));
      const json row = rows_of(folder / "m.jsonl", "step").at(0);
      EXPECT_NEAR(row.at("loss").get<double>(), right.loss, 2e-6 * right.loss);
      EXPECT_NEAR(row.at("grad_norm").get<double>(), right.norm, 2e-6 * right.norm);
    }
  }
}

// A node that is no loss node sums: the sum counts with the samples, and the run reports it.
TEST(SummedLoss, ByAnotherNodeIsSaid) {
  const ModelFolder folder;
  for (const auto& [op, said] : {std::pair("ReduceSum", true), {"ReduceMean", false}}) {
    SmallModel model = linear_model();
    const std::string flat = message(5, message(1, "keepdims") + number(3, 0) + number(20, 2));
    model.nodes.push_back(node(op, {"logits"}, {"total"}, "total") + flat);
    model.outputs = {declared("total", {})};
    folder.write("model.onnx", model.bytes());
    const Finished run = Program::run(
        fsdp_run({folder.model(), "--data", folder / "data", "--steps", "1", "--lr", "0.1"}));
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.out.find("'total' is a sum over a micro-batch (ReduceSum)") != std::string::npos,
              said)
        << run.out;
  }
}

// The sum is over all rows, however many a batch has.
TEST(SummedLoss, AnEvaluationSumsOverItsData) {
  const ModelFolder folder;
  folder.write("model.onnx", summing({}));
  std::vector<float> first(8 * 4);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<float>((i * 7) % 11) / 8 - 0.5f;
  folder.write("eval/x.npy", npy("<f4", "(8, 4)", first));
  folder.write("eval/labels.npy", linear_labels(8));
  for (const Words& split : {Words{"--batch-size", "3"}, Words{"--batch-size", "8"},
                             Words{"--batch-size", "2", "--nproc-per-node", "3"}}) {
    const Finished run = Program::run(fsdp_run({"eval", folder.model(), "--eval-data",
                                                folder / "eval", "--metrics", folder / "m.jsonl"}) +
                                      split);
    ASSERT_EQ(run.status, 0) << run.err;
    const double right = right_sum({}).loss;
    EXPECT_NEAR(rows_of(folder / "m.jsonl", "eval").at(0).at("loss").get<double>(), right,
                2e-6 * right);
  }
}

}  // namespace undone_test
}  // namespace ofsdp
