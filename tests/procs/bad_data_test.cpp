// Data that do not fit the model: refused before the first step with the column, what was expected
// and what was found. And values that only training can find: NaN.
#include <cmath>

#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace bad_data_test {

using namespace onnx_bytes;
using testing_data::npy;

TEST(BadDataTest, NoData) {
  const RunFolder folder;
  std::filesystem::remove_all(folder / "data");
  expect_refused(folder, {folder / "data"});
  const Words elsewhere = folder.train() + Words{"--data", folder / "absent.yaml"};
  expect_refused(folder, elsewhere, {folder / "absent.yaml"});
}

// The names that the graph wants are in the line.
TEST(BadDataTest, AColumnIsMissing) {
  const RunFolder folder;
  std::filesystem::remove(folder / "data/x.npy");
  expect_refused(folder, {folder / "data", "'x'", "wanted: x, labels", "found: labels"});
}

TEST(BadDataTest, AColumnIsMisnamed) {
  const RunFolder folder;
  std::filesystem::rename(folder / "data/x.npy", folder / "data/X.npy");
  expect_refused(folder, folder.train() + Words{"--labels", "labels"},
                 {folder / "data", "'x'", "wanted: x, labels", "found: X, labels"});
}

TEST(BadDataTest, TheLabelsAreMissing) {
  const RunFolder folder;
  std::filesystem::remove(folder / "data/labels.npy");
  expect_refused(folder, {"--labels", folder.model(), "x"});
  expect_refused(folder, folder.train() + Words{"--labels", "targets"}, {"--labels targets", "x"});
}

TEST(BadDataTest, WrongShape) {
  const RunFolder folder;
  folder.write("data/x.npy", npy("<f4", "(12, 5)", std::vector<float>(60)));
  expect_refused(folder, {folder.model(), "'x'", "4", "5"});
  folder.write("data/x.npy", npy("<f4", "(12, 2, 2)", std::vector<float>(48)));
  expect_refused(folder, {folder.model(), "'x'", "2 axes", "3"});
  folder.write("data/x.npy", linear_inputs());
  folder.write("data/labels.npy", npy("<i8", "(12, 2)", std::vector<int64_t>(24)));
  expect_refused(folder, {"'labels'", "expected 2 labels", "found 4"});
}

TEST(BadDataTest, WrongType) {
  const RunFolder folder;
  folder.write("data/x.npy", npy("<i4", "(12, 4)", std::vector<int32_t>(48)));
  expect_refused(folder, {folder / "data/x.npy", "'x'", "expected float32", "found int32"});
  folder.write("data/x.npy", linear_inputs());
  folder.write("data/labels.npy", npy("<f4", "(12,)", std::vector<float>(12, 0.5f)));
  expect_refused(folder, {folder / "data/labels.npy", "'labels'", "sample 0", "expected a class",
                          "a whole number", "found 0.5"});
  folder.write("data/labels.npy", npy("<c8", "(12,)", std::vector<double>(12)));
  expect_refused(folder, {folder / "data/labels.npy", "'labels'", "<c8"});
}

TEST(BadDataTest, LabelsOutOfRange) {
  const RunFolder folder;
  for (const int64_t wrong : {3, -1, -101, 1 << 30}) {
    std::vector<int64_t> labels(12, 1);
    labels[11] = wrong;  // after the last step of this run
    folder.write("data/labels.npy", npy("<i8", "(12,)", labels));
    expect_refused(folder, {"'labels'", "sample 11", format_text("{}", wrong), "0..2"});
  }
  std::vector<int64_t> ignored(12, 1);
  ignored[11] = -100;
  folder.write("data/labels.npy", npy("<i8", "(12,)", ignored));
  expect_trains(folder);
}

TEST(BadDataTest, ColumnsOfDifferentLength) {
  const RunFolder folder;
  folder.write("data/labels.npy", linear_labels(11));
  expect_refused(folder, {folder / "data", "'x' has 12", "'labels' has 11"});
}

TEST(BadDataTest, NoSamples) {
  const RunFolder folder;
  folder.write("data/x.npy", linear_inputs(0));
  folder.write("data/labels.npy", linear_labels(0));
  expect_refused(folder, {folder / "data", "sample"});
  folder.write("data/x.npy", linear_inputs(5));
  folder.write("data/labels.npy", linear_labels(5));
  expect_refused(folder, folder.train() + Words{"--batch-size", "6", "--drop-last"},
                 {"--drop-last", "5"});
}

TEST(BadDataTest, FilesThatAreCutShort) {
  const RunFolder folder;
  const std::string whole = linear_inputs();
  for (const size_t length : {whole.size() - 1, size_t{90}, size_t{5}, size_t{0}}) {
    folder.write("data/x.npy", whole.substr(0, length));
    expect_refused(folder, {folder / "data/x.npy", "'x'"});
  }
}

TEST(BadDataTest, AYamlFileWithAnUnknownKey) {
  const RunFolder folder;
  folder.write("data.yaml", "train:\n  x: {file: data/x.npy, scael: 2}\n");
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"},
                 {folder / "data.yaml", "scael", "scale"});
  folder.write("data.yaml", "train: [\n");
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"},
                 {folder / "data.yaml"});
}

// Found while training: exit status 1, still one line once a run, and no trained file.
TEST(NanLossTest, InTheData) {
  const RunFolder folder;
  std::vector<float> values(48, 0.5f);
  values[4 * 2 + 1] = std::nanf("");  // the first sample of the second step, on rank 0
  folder.write("data/x.npy", npy("<f4", "(12, 4)", values));
  const Words train =
      fsdp_run({folder.model(), "--loss", "cross_entropy", "--steps", "3", "--no-shuffle",
                "--global-batch-size", "2", "--output", folder.output()});
  expect_refused(folder, train,
                 {folder.model(), "NaN", "step 2", "rank 0", "'x'", "node 'multiply'"},
                 {.status = 1});
}

TEST(NanLossTest, FromARateThatIsTooHigh) {
  const RunFolder folder;
  const Words words = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--optimizer",
                                "sgd", "--lr", "1e30", "--output", folder.output()});
  expect_refused(folder, words, {"mlp/model.onnx", "NaN", "step 2", "rank ", "node 'node_linear"},
                 {.status = 1});
}

TEST(NanLossTest, WithAccumulationAndOnAnotherRank) {
  const RunFolder folder;
  std::vector<float> values(48, 0.5f);
  values[4 * 3] = std::nanf("");  // sample 3: the second forward of rank 1
  folder.write("data/x.npy", npy("<f4", "(12, 4)", values));
  const Words words =
      fsdp_run({folder.model(), "--loss", "cross_entropy", "--steps", "3", "--no-shuffle",
                "--batch-size", "1", "--grad-accum", "2", "--output", folder.output()});
  expect_refused(folder, words, {"NaN", "step 1", "rank 1"}, {.status = 1, .one_rank = false});
}

// Evaluation data next to good training data: two samples, of which rank 1 has the second.
void write_evaluation(const RunFolder& folder, const std::vector<float>& second) {
  std::vector<float> values(4, 0.5f);
  values.insert(values.end(), second.begin(), second.end());
  folder.write("eval/x.npy", npy("<f4", "(2, 4)", values));
  folder.write("eval/labels.npy", npy("<i8", "(2,)", std::vector<int64_t>{1, 1}));
}

TEST(BadEvaluationTest, NanInTheLoss) {
  const RunFolder folder;
  write_evaluation(folder, {0, 0, std::nanf(""), 0});
  const Words more{"--eval-data", folder / "eval"};
  const Words facts{folder.model(), "evaluation loss is NaN", "step 2", "'x'", "node 'multiply'"};
  expect_refused(folder, folder.train() + more, facts, {.status = 1});
  expect_refused(folder, folder.train() + more, {"rank 1"}, {.status = 1, .one_rank = false});
  const Words eval = fsdp_run({"eval", folder.model(), "--loss", "cross_entropy"});
  expect_refused(folder, eval + more, {folder.model(), "evaluation loss is NaN", "step 0"},
                 {.status = 1});
}

// Every logit is finite; the difference of two is not.
TEST(BadEvaluationTest, AnInfiniteLoss) {
  const RunFolder folder;
  write_evaluation(folder, {2e38f, 0, 2e38f, 0});
  const Words words =
      fsdp_run({folder.model(), "--loss", "cross_entropy", "--lr", "0", "--steps", "3", "--output",
                folder.output(), "--eval-data", folder / "eval", "--eval-interval", "2step"});
  expect_refused(folder, words, {folder.model(), "evaluation loss is infinite", "step 2", "rank "},
                 {.status = 1});
}

// The factor of the weight decay is infinite, and a weight of 0 times that is NaN.
Words with_nan_weights(const RunFolder& folder) {
  return fsdp_run({folder.model(), "--loss", "cross_entropy", "--optimizer", "adamw", "--lr",
                   "1e38", "--weight-decay", "1e3", "--output", folder.output()});
}

TEST(NanWeightsTest, FromTheLastUpdate) {
  const RunFolder folder;
  expect_refused(folder, with_nan_weights(folder) + Words{"--steps", "1"},
                 {folder.model(), "weights are NaN", "step 1", "rank "}, {.status = 1});
}

// Nor are they saved between: a run that goes on from there could only fail.
TEST(NanWeightsTest, AreNoCheckpoint) {
  const RunFolder folder;
  const Words more{"--steps", "3", "--checkpoint-dir", folder / "saves", "--checkpoint-interval",
                   "1step"};
  const Finished run = Program::run(with_nan_weights(folder) + more + ranks(2));
  EXPECT_EQ(run.status, 1);
  expect_one_line(run.err, {"weights are NaN", "step 1", "rank "});
  for (const auto& [name, bytes] : folder.contents()) {
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("manifest.json")));
  }
}

}  // namespace bad_data_test
}  // namespace ofsdp
