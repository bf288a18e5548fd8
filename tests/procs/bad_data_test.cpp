// Data that do not fit the model: refused before the first step, with the column, the expected and
// the found. And values that only training can find: NaN.
#include <cmath>

#include "tests/support/device_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace bad_data_test {

using namespace onnx_bytes;
using testing_data::npy;

TEST(BadDataTest, NoData) {
  const ModelFolder folder;
  std::filesystem::remove_all(folder / "data");
  expect_refused(folder, {"--data", folder / "data", "beside the model is not there"});
  const Words elsewhere = folder.train() + Words{"--data", folder / "absent.yaml"};
  expect_refused(folder, elsewhere, {folder / "absent.yaml"});
}

// The line has the names that the graph wants.
TEST(BadDataTest, AColumnIsMissing) {
  const ModelFolder folder;
  std::filesystem::remove(folder / "data/x.npy");
  expect_refused(folder, {folder / "data", "'x'", "wanted: x, labels", "found: labels"});
}

TEST(BadDataTest, AColumnIsMisnamed) {
  const ModelFolder folder;
  std::filesystem::rename(folder / "data/x.npy", folder / "data/X.npy");
  expect_refused(folder, folder.train() + Words{"--labels", "labels"},
                 {folder / "data", "'x'", "wanted: x, labels", "found: X, labels"});
}

TEST(BadDataTest, TheLabelsAreMissing) {
  const ModelFolder folder;
  std::filesystem::remove(folder / "data/labels.npy");
  expect_refused(folder, {"--labels", folder.model(), "x", "add one, in a folder labels.npy"});
  expect_refused(folder, folder.train() + Words{"--labels", "targets"}, {"--labels targets", "x"});
}

TEST(BadDataTest, WrongShape) {
  const ModelFolder folder;
  folder.write("data/x.npy", npy("<f4", "(12, 5)", std::vector<float>(60)));
  expect_refused(folder, {folder.model(), "'x'", "4", "5"});
  folder.write("data/x.npy", npy("<f4", "(12, 2, 2)", std::vector<float>(48)));
  expect_refused(folder, {folder.model(), "'x'", "2 axes", "3"});
  folder.write("data/x.npy", linear_inputs());
  folder.write("data/labels.npy", npy("<i8", "(12, 2)", std::vector<int64_t>(24)));
  expect_refused(folder, {"'labels'", "expected 2 labels", "found 4"});
  folder.write("data/labels.npy", npy("<i8", "(12, 3)", std::vector<int64_t>(36)));
  expect_refused(folder, {"'labels'", "expected 2 labels", "found 6", "one-hot?", "argmax"});
}

// Labels may be floats like 1.0, also in a table.
TEST(BadDataTest, WholeFloatsAreClasses) {
  const ModelFolder folder;
  folder.write("data/labels.npy", npy("<f4", "(12,)", std::vector<float>(12, 2.0f)));
  expect_trains(folder);
  folder.write("labels.csv", "kind\n0.0\n1.0\n2.0\n");
  folder.write("data/x.npy", linear_inputs(3));
  folder.write("data.yaml",
               "train:\n  x: {file: data/x.npy}\n  kind: {file: labels.csv, column: kind}\n");
  expect_trains(folder, {"--data", folder / "data.yaml", "--batch-size", "1"});
}

// A table with four numbers and a class in each of 12 rows.
std::string table(const std::vector<std::string>& classes) {
  std::string text = "a,b,c,d,kind\n";
  for (size_t i = 0; i < 12; ++i) {
    for (size_t k = 0; k < 4; ++k) text += format_text("{},", static_cast<double>(i * k % 5) / 4);
    text += classes[i % classes.size()] + "\n";
  }
  return text;
}

// The classes are sorted, so their numbers are 1, 2, 0.
const std::vector<std::string> kKinds = {"daisy", "poppy", "aster"};
const std::vector<std::string> kNumbers = {"1", "2", "0"};
constexpr const char* kTableYaml =
    "train:\n  x: {file: d.csv, column: [a, b, c, d]}\n  kind: {file: d.csv, column: kind}\n";

TEST(BadDataTest, ATableWithoutTheColumnSaysHowToMakeIt) {
  const ModelFolder folder;
  folder.write("d.csv", table(kKinds));
  const Words words = folder.train() + Words{"--data", folder / "d.csv", "--labels", "kind"};
  expect_refused(folder, words,
                 {"d.csv", "no column 'x'", "wanted: x, kind",
                  "train: {x: {file: ", "column: [a, b, c, d]}}"});
  folder.write("data.yaml", kTableYaml);
  folder.write("d.csv", table(kNumbers) + "x,1,1,1,1\n");
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"},
                 {"d.csv line 14", "column 'a'", "expected a number", "found 'x'"});
}

TEST(BadDataTest, LabelsThatAreNeitherNumbersNorNames) {
  const ModelFolder folder;
  folder.write("data.yaml", kTableYaml);
  const Words words = folder.train() + Words{"--data", folder / "data.yaml"};
  for (const auto& [kinds, fact] :
       {std::pair(Words{"1", "2", "three"}, "labels are all numbers or all names"),
        std::pair(Words{"1", "2", ""}, "-100, the ignore-index"),
        std::pair(Words{"daisy", "caf\xe9", "b"}, "expected text in UTF-8")}) {
    folder.write("d.csv", table(kinds));
    expect_refused(folder, words, {"d.csv line ", "column 'kind'", fact});
  }
  folder.write("d.csv", std::string("\xff\xfe", 2) + table(kNumbers));
  expect_refused(folder, words, {"d.csv: expected text in UTF-8, found UTF-16"});
  folder.write("d.csv", table({"TRUE", "FALSE", "True"}));
  EXPECT_EQ(Program::run(words).status, 0);
}

TEST(ClassNamesTest, AreForALossOverClasses) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.initializers = {tensor("w", kFloat, {4, 1}, raw<float>({1, 2, 3, 4})),
                        tensor("b", kFloat, {1}, raw<float>({1}))};
  model.outputs = {declared("logits", {-1, 1})};
  folder.write("model.onnx", model.bytes());
  folder.write("d.csv", table(kKinds));
  folder.write("data.yaml", kTableYaml);
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml", "--loss", "mse"},
                 {"d.csv", "'kind'", "expected numbers", "found text ('aster')"});
}

TEST(ClassNamesTest, AreNumberedInSortedOrder) {
  std::vector<std::string> trained;
  for (const auto& classes : {kKinds, kNumbers}) {
    const ModelFolder folder;
    folder.write("d.csv", table(classes));
    folder.write("data.yaml", kTableYaml);
    const Finished run = Program::run(folder.train() + Words{"--data", folder / "data.yaml"});
    ASSERT_EQ(run.status, 0) << run.err;
    trained.push_back(content(folder.output()));
    const bool named = classes == kKinds;
    EXPECT_EQ(run.out.find("classes: 0 aster, 1 daisy, 2 poppy") != std::string::npos, named);
    EXPECT_EQ(std::filesystem::exists(folder / "classes.txt"), named);
    if (!named) continue;
    EXPECT_EQ(content(folder / "classes.txt"), "aster\ndaisy\npoppy\n");
  }
  EXPECT_TRUE(trained[0] == trained[1]);
}

// An evaluation counts by the classes in the training data, or in the file next to the model.
TEST(ClassNamesTest, OfAnEvaluationAreThoseOfTheTraining) {
  const ModelFolder folder;
  std::vector<double> losses;
  for (const auto& [train, eval] :
       {std::pair(kKinds, "daisy"), std::pair(kNumbers, "1"), std::pair(kKinds, "daisy")}) {
    folder.write("d.csv", table(train));
    folder.write("e.csv", table({eval}));
    folder.write("data.yaml", std::string(kTableYaml) +
                                  "eval:\n  x: {file: e.csv, column: [a, b, c, "
                                  "d]}\n  kind: {file: e.csv}\n");
    const Words metrics{"--data", folder / "data.yaml", "--metrics", folder / "m.jsonl"};
    ASSERT_EQ(Program::run(folder.train() + metrics).status, 0);
    losses.push_back(losses_of(folder / "m.jsonl", "eval").back());
  }
  EXPECT_EQ(losses[0], losses[1]);
  folder.write("eval.yaml",
               "eval:\n  x: {file: e.csv, column: [a, b, c, d]}\n"
               "  kind: {file: e.csv}\n"
               "train:\n  x: {file: e.csv, column: [a, b, c, d]}\n"
               "  kind: {file: e.csv}\n");
  const Finished eval =
      Program::run(fsdp_run({"eval", folder.output(), "--loss", "cross_entropy", "--data",
                             folder / "eval.yaml", "--metrics", folder / "m.jsonl"}));
  ASSERT_EQ(eval.status, 0) << eval.err;
  EXPECT_NEAR(losses_of(folder / "m.jsonl", "eval").back(), losses[0], 1e-6);
  folder.write("e.csv", table({"daisy", "tulip"}));
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"},
                 {"e.csv line 3", "expected a class of aster, daisy, poppy", "found 'tulip'"});
}

TEST(BadDataTest, FilesOfOtherFormats) {
  const ModelFolder folder;
  folder.write("pictures/cat/1.png", std::string("\x89PNG\r\n\x1a\n", 8) + "....");
  expect_refused(folder, folder.train() + Words{"--data", folder / "pictures"},
                 {folder / "pictures/cat/1.png", "expected the header of a PNG image"});
  expect_refused(folder, folder.train() + Words{"--data", folder / "pictures/cat/1.png"},
                 {"--data", "cat/1.png", "a PNG image", "give its folder"});
  folder.write("films/cat/1.gif", "GIF89a....");
  expect_refused(folder, folder.train() + Words{"--data", folder / "films"},
                 {folder / "films", "expected columns, files NAME.npy", "cat/1.gif", "a GIF image",
                  "save it as .png"});
  folder.write("x.arrow", "ARROW1....");
  folder.write("data.yaml", "train: {x: {file: x.arrow}, labels: {file: data/labels.npy}}\n");
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"},
                 {"x.arrow", "an Arrow table", ".csv"});
  folder.write("x.h5", "\x89HDF....");
  expect_refused(folder, folder.train() + Words{"--data", folder / "x.h5"},
                 {"--data", "x.h5", "an HDF5 file", "numpy.save"});
  expect_refused(folder, folder.train() + Words{"--data", folder / "data/x.npy"},
                 {"--data", "data/x.npy", "one column: give its folder"});
  folder.write("d.jsonl", "{\"x\": \"good film\", \"labels\": 1}\n");
  expect_refused(folder, folder.train() + Words{"--data", folder / "d.jsonl"},
                 {"d.jsonl line 1", "field 'x'", "found text, 'good film'", "tokenizer"});
}

TEST(BadDataTest, AnIndexOutOfRangeNamesItsSample) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes = {node("Gather", {"w", "ids"}, {"rows"}, "look_up"),
                 node("Add", {"rows", "b"}, {"logits"}, "add")};
  model.inputs = {declared("ids", {-1}, 7)};
  folder.write("model.onnx", model.bytes());
  std::filesystem::remove(folder / "data/x.npy");
  std::vector<int64_t> ids(12, -4);
  folder.write("data/ids.npy", npy("<i8", "(12,)", ids));
  expect_trains(folder);
  ids[1] = 4;
  folder.write("data/ids.npy", npy("<i8", "(12,)", ids));
  const Words words = fsdp_run({folder.model(), "--loss", "cross_entropy", "--global-batch-size",
                                "2", "--steps", "2", "--no-shuffle", "--output", folder.output()});
  expect_refused(folder, words,
                 {"ids.npy", "'ids'", "sample 1", "expected an index of 0..3", "found 4"});
}

// uint8 with a mean and a deviation for each channel, against floats computed here.
TEST(ChannelsTest, HaveTheirOwnMeanAndDeviation) {
  const ModelFolder folder;
  const std::vector<float> means = {1, 2, 3, 4}, stds = {2, 4, 8, 16};
  std::vector<uint8_t> pixels(48);
  std::vector<float> floats(48);
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<uint8_t>(i * 5);
    floats[i] = (static_cast<float>(pixels[i]) - means[i % 4]) / stds[i % 4];
  }
  folder.write("pixels.npy", npy("|u1", "(12, 4)", pixels));
  folder.write("data/x.npy", npy("<f4", "(12, 4)", floats));
  const std::string labels = "labels: {file: data/labels.npy}}\n";
  folder.write("data.yaml",
               "train: {x: {file: pixels.npy, mean: [1, 2, 3, 4], std: [2, 4, 8, 16]}, " + labels);
  std::vector<std::string> trained;
  for (const Words& more : {Words{}, Words{"--data", folder / "data.yaml"}}) {
    const Finished run = Program::run(folder.train() + more);
    ASSERT_EQ(run.status, 0) << run.err;
    trained.push_back(content(folder.output()));
  }
  EXPECT_TRUE(trained[0] == trained[1]);
  std::filesystem::remove(folder.output());
  const auto expect_wrong = [&](const std::string& keys, const Words& facts) {
    folder.write("data.yaml", "train: {x: {file: pixels.npy, " + keys + "}, " + labels);
    expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"}, facts);
  };
  expect_wrong("mean: [1, 2]", {"pixels.npy", "'x'", "2 numbers", "2 channels", "found [4]"});
  expect_wrong("mean: [1, 2], std: [1, 2, 3]", {"data.yaml:1", "mean", "std", "found 2 and 3"});
  expect_wrong("std: [1, 0, 1, 1]", {"data.yaml:1", "std", "other than 0"});
}

TEST(BadDataTest, WrongType) {
  const ModelFolder folder;
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
  const ModelFolder folder;
  for (const int64_t wrong : {3, -1, -101, 1 << 30}) {
    std::vector<int64_t> labels(12, 1);
    labels[11] = wrong;  // after this run's last step
    folder.write("data/labels.npy", npy("<i8", "(12,)", labels));
    expect_refused(folder, {"'labels'", "sample 11", format_text("{}", wrong), "0..2"});
  }
  std::vector<int64_t> ignored(12, 1);
  ignored[11] = -100;
  folder.write("data/labels.npy", npy("<i8", "(12,)", ignored));
  expect_trains(folder);
}

TEST(BadDataTest, ColumnsOfDifferentLength) {
  const ModelFolder folder;
  folder.write("data/labels.npy", linear_labels(11));
  expect_refused(folder, {folder / "data", "'x' has 12", "'labels' has 11"});
}

TEST(BadDataTest, NoSamples) {
  const ModelFolder folder;
  folder.write("data/x.npy", linear_inputs(0));
  folder.write("data/labels.npy", linear_labels(0));
  expect_refused(folder, {folder / "data", "sample"});
  folder.write("data/x.npy", linear_inputs(5));
  folder.write("data/labels.npy", linear_labels(5));
  expect_refused(folder, folder.train() + Words{"--batch-size", "6", "--drop-last"},
                 {"--drop-last", "5"});
}

TEST(BadDataTest, FilesThatAreCutShort) {
  const ModelFolder folder;
  const std::string whole = linear_inputs();
  for (const size_t length : {whole.size() - 1, size_t{90}, size_t{5}, size_t{0}}) {
    folder.write("data/x.npy", whole.substr(0, length));
    expect_refused(folder, {folder / "data/x.npy", "'x'"});
  }
}

TEST(BadDataTest, AYamlFileWithAnUnknownKey) {
  const ModelFolder folder;
  folder.write("data.yaml", "train:\n  x: {file: data/x.npy, scael: 2}\n");
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"},
                 {folder / "data.yaml", "scael", "scale"});
  folder.write("data.yaml", "train: [\n");
  expect_refused(folder, folder.train() + Words{"--data", folder / "data.yaml"},
                 {folder / "data.yaml"});
}

// Found while training: exit status 1, still one line once a run, and no trained file.
TEST(NanLossTest, InTheData) {
  const ModelFolder folder;
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
  const ModelFolder folder;
  const Words words = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--optimizer",
                                "sgd", "--lr", "1e30", "--output", folder.output()});
  expect_refused(folder, words, {"mlp/model.onnx", "NaN", "step 2", "rank ", "node 'node_linear"},
                 {.status = 1});
}

TEST(NanLossTest, WithAccumulationAndOnAnotherRank) {
  const ModelFolder folder;
  std::vector<float> values(48, 0.5f);
  values[4 * 3] = std::nanf("");  // sample 3: the second forward of rank 1
  folder.write("data/x.npy", npy("<f4", "(12, 4)", values));
  const Words words =
      fsdp_run({folder.model(), "--loss", "cross_entropy", "--steps", "3", "--no-shuffle",
                "--batch-size", "1", "--grad-accum", "2", "--output", folder.output()});
  expect_refused(folder, words, {"NaN", "step 1", "rank 1"}, {.status = 1, .one_rank = false});
}

// Evaluation data next to good training data: two samples; rank 1 has the second.
void write_evaluation(const ModelFolder& folder, const std::vector<float>& second) {
  std::vector<float> values(4, 0.5f);
  values.insert(values.end(), second.begin(), second.end());
  folder.write("eval/x.npy", npy("<f4", "(2, 4)", values));
  folder.write("eval/labels.npy", npy("<i8", "(2,)", std::vector<int64_t>{1, 1}));
}

// The bad row is rank 1's if there are two. Training goes on, and everything is saved.
void expect_goes_on(const std::vector<float>& row, const std::string& word) {
  for (const int count : {1, 2}) {
    const ModelFolder folder;
    write_evaluation(folder, row);
    const Finished run = Program::run(fsdp_run({folder.model(),
                                                "--loss",
                                                "cross_entropy",
                                                "--lr",
                                                "0",
                                                "--steps",
                                                "4",
                                                "--batch-size",
                                                "2",
                                                "--output",
                                                folder.output(),
                                                "--eval-data",
                                                folder / "eval",
                                                "--eval-interval",
                                                "2step",
                                                "--metrics",
                                                folder / "m.jsonl",
                                                "--checkpoint-dir",
                                                folder / "ck",
                                                "--keep-best",
                                                "loss",
                                                "--early-stop",
                                                "3"}) +
                                      ranks(count));
    EXPECT_EQ(run.status, 0) << run.err;
    expect_one_line(run.err, {"warning: evaluation after step 2: loss is " + word,
                              format_text("(rank {})", count - 1), "the weights are kept"});
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_EQ(run.out.find("loss: no label"), std::string::npos) << run.out;
    const auto rows = rows_of(folder / "m.jsonl", "eval");
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_TRUE(rows[1].at("loss").is_null());
    EXPECT_TRUE(std::filesystem::exists(folder.output()));
    EXPECT_TRUE(std::filesystem::exists(folder / "ck/step-00000004"));
    EXPECT_FALSE(std::filesystem::exists(folder / "ck/best"));
  }
}

// fsdp-run eval alone names the node; a run keeps its weights.
TEST(BadEvaluationTest, NanInTheLoss) {
  const std::vector<float> row{0, 0, std::nanf(""), 0};
  expect_goes_on(row, "NaN");
  const ModelFolder folder;
  write_evaluation(folder, row);
  const Words eval =
      fsdp_run({"eval", folder.model(), "--loss", "cross_entropy", "--eval-data", folder / "eval"});
  expect_refused(
      folder, eval,
      {folder.model(), "evaluation loss is NaN", "step 0", "rank ", "'x'", "node 'multiply'"},
      {.status = 1});
}

// Every logit is finite; the difference between two is not.
TEST(BadEvaluationTest, AnInfiniteLoss) {
  const std::vector<float> row{2e38f, 0, 2e38f, 0};
  expect_goes_on(row, "infinite");
  const ModelFolder folder;
  write_evaluation(folder, row);
  const Finished run = Program::run(fsdp_run(
      {"eval", folder.model(), "--loss", "cross_entropy", "--eval-data", folder / "eval"}));
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, testing::HasSubstr("loss inf"));
  expect_one_line(run.err, {"warning: evaluation: loss is infinite (rank 0)"});
  EXPECT_EQ(run.err.find("weights"), std::string::npos);
}

TEST(BadEvaluationTest, DevicesGoOnAsTheCpuDoes) {
  const ModelFolder folder;
  write_evaluation(folder, {0, 0, std::nanf(""), 0});
  for (const int count : {1, 2}) {
    const Words words = fsdp_run({folder.model(), "--loss", "cross_entropy", "--batch-size", "2",
                                  "--eval-data", folder / "eval"}) +
                        ranks(count);
    const Trained cpu = on_cpu(words), device = on_counting_device(words);
    expect_both_ran(cpu, device);
    EXPECT_TRUE(cpu.rows == device.rows);
    EXPECT_TRUE(device.rows.back().at("loss").is_null());
    EXPECT_THAT(device.run.err,
                testing::HasSubstr(format_text("loss is NaN (rank {})", count - 1)));
  }
}

// The factor of the weight decay is infinite, and 0 times infinity is NaN.
Words with_nan_weights(const ModelFolder& folder) {
  return fsdp_run({folder.model(), "--loss", "cross_entropy", "--optimizer", "adamw", "--lr",
                   "1e38", "--weight-decay", "1e3", "--output", folder.output()});
}

TEST(NanWeightsTest, FromTheLastUpdate) {
  const ModelFolder folder;
  expect_refused(folder, with_nan_weights(folder) + Words{"--steps", "1"},
                 {folder.model(), "weights are NaN", "step 1", "rank "}, {.status = 1});
}

// NaN weights are not saved: a run that goes on from them could only fail.
TEST(NanWeightsTest, AreNoCheckpoint) {
  const ModelFolder folder;
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
