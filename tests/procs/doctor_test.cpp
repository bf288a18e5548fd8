// Plants mistakes in a small model or in the data. `fsdp-run doctor` names each in one line with
// the flag that mends it, and finds nothing in the samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>

#include "tests/support/refused_run.h"

namespace ofsdp {
namespace doctor_test {

using onnx_bytes::declared;
using onnx_bytes::kFloat;
using onnx_bytes::kInt64;
using onnx_bytes::linear_model;
using onnx_bytes::linear_weights;
using onnx_bytes::node;
using onnx_bytes::raw;
using onnx_bytes::SmallModel;
using onnx_bytes::tensor;
using testing::HasSubstr;
using testing_data::npy;

// Returns the doctor's findings, without tables and without the last line, which has the number.
std::vector<std::string> findings(const ModelFolder& folder, const Words& more) {
  const Finished run = Program::run(
      fsdp_run({"doctor", folder.model(), "--batch-size", "4", "--steps", "30"}) + more);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  std::vector<std::string> lines = lines_of(run.out);
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("  "); });
  EXPECT_FALSE(lines.empty());
  if (lines.empty()) return lines;
  const std::string last = lines.back();
  lines.pop_back();
  EXPECT_EQ(last, lines.empty() ? "doctor: nothing found"
                                : format_text("doctor: {} finding{}", lines.size(),
                                              lines.size() == 1 ? "" : "s"));
  return lines;
}

const Words kClasses{"--loss", "cross_entropy"};

void expect_found(const ModelFolder& folder, const Words& more, const std::string& what,
                  const std::string& flag) {
  const auto lines = findings(folder, more);
  EXPECT_THAT(lines, testing::Contains(testing::AllOf(HasSubstr(what), HasSubstr(flag))));
  EXPECT_EQ(lines.size(), 1u);
}

void write_labels(const ModelFolder& folder, const std::vector<int64_t>& labels) {
  folder.write("data/labels.npy", npy("<i8", format_text("({},)", labels.size()), labels));
}

// The linear model with different nodes between x and the logits.
void write_model(const ModelFolder& folder, const std::vector<std::string>& nodes,
                 const std::vector<std::string>& more = {}) {
  SmallModel model = linear_model();
  model.nodes = nodes;
  model.initializers.insert(model.initializers.end(), more.begin(), more.end());
  folder.write("model.onnx", model.bytes());
}

// A normalization, a windowed Fourier transform and triangular filters before a learned layer. With
// `learned`, weights have the same shapes but none of these forms.
class Spectrogram : public ModelFolder {
 public:
  static constexpr int64_t kLength = 64, kBins = 33, kBands = 10;

  explicit Spectrogram(bool learned) {
    SmallModel model = linear_model();
    model.inputs = {declared("x", {-1, kLength})};
    model.nodes = {node("Mul", {"x", "scale"}, {"scaled"}, "normalize"),
                   node("MatMul", {"scaled", "cosines"}, {"real"}, "transform"),
                   node("Mul", {"real", "real"}, {"power"}, "square"),
                   node("MatMul", {"power", "bank"}, {"bands"}, "collect"),
                   node("MatMul", {"bands", "w"}, {"products"}, "multiply"),
                   node("Add", {"products", "b"}, {"logits"}, "add")};
    if (learned) model.nodes[0] = node("Relu", {"x"}, {"scaled"}, "normalize");
    model.initializers = {
        tensor("w", kFloat, {kBands, 3}, raw(numbers(kBands * 3))), model.initializers[1],
        tensor("cosines", kFloat, {kLength, kBins},
               raw(learned ? numbers(kLength * kBins) : cosines())),
        tensor("bank", kFloat, {kBins, kBands}, raw(learned ? numbers(kBins * kBands) : bank()))};
    if (!learned) {
      model.initializers.push_back(
          tensor("scale", kFloat, {kLength}, raw(std::vector<float>(kLength, 0.5f))));
    }
    write("model.onnx", model.bytes());
    write("data/x.npy", npy("<f4", format_text("(12, {})", kLength), numbers(12 * kLength)));
  }

 private:
  static std::vector<float> numbers(int64_t n) {
    std::minstd_rand random(7);
    std::uniform_real_distribution<float> some(-0.2f, 0.2f);
    std::vector<float> made(static_cast<size_t>(n));
    for (float& v : made) v = some(random);
    return made;
  }
  static std::vector<float> cosines() {
    std::vector<float> made;
    for (int64_t i = 0; i < kLength * kBins; ++i) {
      const double turn = 2 * std::numbers::pi * static_cast<double>(i / kBins) / kLength;
      made.push_back(static_cast<float>(0.5 * (1 - std::cos(turn)) *
                                        std::cos(turn * static_cast<double>(i % kBins)) / 4));
    }
    return made;
  }
  static std::vector<float> bank() {
    std::vector<float> made;
    for (int64_t i = 0; i < kBins * kBands; ++i) {
      const double away = std::abs(static_cast<double>(i / kBands - 3 * (i % kBands) - 3));
      made.push_back(static_cast<float>(std::max(0.0, 1 - away / 3)));
    }
    return made;
  }
};

TEST(DoctorTest, WeightsThatLookLikePreprocessing) {
  const auto lines = findings(Spectrogram(false), kClasses);
  for (const char* what : {"'cosines' looks like the sinusoids", "'bank' looks like a filter bank",
                           "'scale' looks like the normalization of an input"}) {
    const std::string name = std::string(what).substr(1, std::string(what).find('\'', 1) - 1);
    EXPECT_THAT(lines, testing::Contains(testing::AllOf(
                           HasSubstr(what), HasSubstr("--freeze " + name + " keeps it"))));
  }
  const auto frozen =
      findings(Spectrogram(false),
               kClasses + Words{"--freeze", "cosines", "--freeze", "bank", "--freeze", "scale"});
  const auto learned = findings(Spectrogram(true), kClasses);
  for (const auto& others : {frozen, learned}) {
    EXPECT_THAT(others, testing::Not(testing::Contains(HasSubstr("preprocessing"))));
  }
}

TEST(DoctorTest, SaysNothingOfAGoodModel) {
  EXPECT_THAT(findings(ModelFolder(), kClasses), testing::IsEmpty());
}

TEST(DoctorTest, SaysNothingOfTheSamples) {
  for (const char* sample : {"mnist/mnist.onnx", "bert/bert.onnx", "gpt/gpt.onnx"}) {
    Start patient;
    patient.patience = 200;
    const Finished run = Program::run(
        fsdp_run({"doctor", sample_model(sample), "--global-batch-size", "8"}), patient);
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.out, "doctor: nothing found\n") << sample;
    EXPECT_EQ(run.err, "") << sample;
  }
}

TEST(DoctorTest, JsonIsOneObject) {
  using Json = nlohmann::json;
  const ModelFolder folder;
  const auto object = [&](const Words& more) {
    const Finished run = Program::run(
        fsdp_run({"doctor", folder.model(), "--batch-size", "4", "--steps", "30", "--json"}) +
        kClasses + more);
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.err, "");
    EXPECT_EQ(lines_of(run.out).size(), 1u) << run.out;
    return Json::parse(run.out, nullptr, false);
  };
  EXPECT_EQ(object({})["findings"], Json::array());
  const Json rate = object({"--lr", "1e6", "--optimizer", "sgd"});
  ASSERT_EQ(rate["findings"].size(), 1u) << rate;
  EXPECT_THAT(rate["findings"][0]["problem"].get<std::string>(),
              testing::StartsWith("--lr 1e+06: "));
  EXPECT_THAT(rate["findings"][0]["option"].get<std::string>(), HasSubstr("--lr 100000"));
  const Json swept = object({"--find-lr"});
  EXPECT_GT(swept["lr"], 0);
  EXPECT_GT(swept["curve"].size(), 4u);
}

TEST(DoctorTest, MergedCopies) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes = {node("MatMul", {"x", "w"}, {"p"}, "/blocks.0/MatMul"),
                 node("Add", {"p", "b"}, {"q"}, "/blocks.0/Add"),
                 node("Add", {"q", "b"}, {"logits"}, "/blocks.1/Add")};
  model.initializers[1] = tensor("b", kFloat, {3}, raw<float>({0, 0, 0}));
  folder.write("model.onnx", model.bytes());
  expect_found(folder, kClasses, "merged copies: ", "--untie auto");
}

// As PyTorch's exporters write it; the last producer counts.
void write_torch_model(const ModelFolder& folder, const SmallModel& model,
                       const std::string& metadata = "") {
  folder.write("model.onnx", model.bytes() + onnx_bytes::message(2, "pytorch") + metadata);
}

TEST(DoctorTest, NamesThatTheExporterMadeUp) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes = {node("MatMul", {"x", "val_7"}, {"products"}, "multiply"),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  model.initializers[0] = tensor("val_7", kFloat, {4, 3}, raw(linear_weights()));
  folder.write("model.onnx", model.bytes());
  EXPECT_THAT(findings(folder, kClasses), testing::IsEmpty());
  write_torch_model(folder, model);
  expect_found(folder, kClasses, "lost names: 1 weight ('val_7')", "onnx_fsdp.export(module");
}

TEST(DoctorTest, ABatchThatTheExporterFixed) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.inputs = {declared("x", {4, 4})};
  model.outputs = {declared("logits", {4, 3})};
  write_torch_model(folder, model);
  expect_found(folder, kClasses, "fixed batch: the first axis of 'x' (4) is fixed",
               "dynamic_shapes=");
}

TEST(DoctorTest, WeightsThatTheExporterUntied) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes = {node("Gather", {"table", "ids"}, {"rows"}, "look_up"),
                 node("MatMul", {"rows", "head"}, {"logits"}, "multiply")};
  std::vector<float> table(1024), turned(1024);
  for (size_t i = 0; i < 1024; ++i) {
    table[i] = static_cast<float>(i * 37 % 101) / 400 - 0.125f;
    turned[i % 16 * 64 + i / 16] = table[i];
  }
  model.initializers = {tensor("table", kFloat, {64, 16}, raw(table)),
                        tensor("head", kFloat, {16, 64}, raw(turned))};
  model.inputs = {declared("ids", {-1}, kInt64)};
  model.outputs = {declared("logits", {-1, 64})};
  folder.write("data/ids.npy", npy<int64_t>("<i8", "(12,)", {0, 9, 3, 7, 8, 1, 2, 5, 6, 4, 0, 3}));
  write_torch_model(folder, model);
  expect_found(folder, kClasses, "untied weights: 'head' has the values of 'table'",
               "onnx_fsdp.export(module");
}

TEST(DoctorTest, ABatchNormalizationThatTheExporterFolded) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  const std::string rule = onnx_bytes::message(1, "pkg.onnxscript.rewriter.rule_name") +
                           onnx_bytes::message(2, "FuseBatchNormIntoConv");
  model.nodes = {
      node("Conv", {"image", "c.weight", "c.bias"}, {"map"}, "conv") + onnx_bytes::message(9, rule),
      node("Flatten", {"map"}, {"flat"}, "flatten"),
      node("MatMul", {"flat", "w"}, {"products"}, "multiply"),
      node("Add", {"products", "b"}, {"logits"}, "add")};
  model.initializers.push_back(
      tensor("c.weight", kFloat, {1, 1, 3, 3}, raw(std::vector<float>(9, 0.125f))));
  model.initializers.push_back(tensor("c.bias", kFloat, {1}, raw<float>({0.5f})));
  model.inputs = {declared("image", {-1, 1, 4, 4})};
  std::vector<float> pixels(12 * 16);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(i * 37 % 64) / 64;
  folder.write("data/image.npy", npy("<f4", "(12, 1, 4, 4)", pixels));
  write_torch_model(folder, model);
  expect_found(folder, kClasses, "folded batch normalization: 1 convolution ('conv')",
               "onnx_fsdp.export(module");
}

TEST(DoctorTest, DropoutThatAnExportLeftOut) {
  const ModelFolder folder;
  const auto entry = [](const char* training) {
    const std::string text = format_text(
        R"({{"version":1,"training":{},"dropout":2,"tensors":{{"w":"w","b":"b"}}}})", training);
    return onnx_bytes::message(
        14, onnx_bytes::message(1, "onnx_fsdp.state_dict") + onnx_bytes::message(2, text));
  };
  write_torch_model(folder, linear_model(), entry("false"));
  expect_found(folder, kClasses, "no dropout: ", "module.train()");
  write_torch_model(folder, linear_model(), entry("true"));
  EXPECT_THAT(findings(folder, kClasses), testing::IsEmpty());
}

TEST(DoctorTest, FrozenStatistics) {
  const ModelFolder folder;
  const std::vector<float> ones(4, 1.f), zeros(4, 0.f);
  write_model(folder,
              {node("BatchNormalization", {"x", "scale", "shift", "mean", "var"}, {"n"}, "norm"),
               node("MatMul", {"n", "w"}, {"products"}, "multiply"),
               node("Add", {"products", "b"}, {"logits"}, "add")},
              {tensor("scale", kFloat, {4}, raw(ones)), tensor("shift", kFloat, {4}, raw(zeros)),
               tensor("mean", kFloat, {4}, raw(zeros)), tensor("var", kFloat, {4}, raw(ones))});
  expect_found(folder, kClasses, "frozen statistics: BatchNormalization 'norm'", "--freeze");
}

TEST(DoctorTest, ALossThatDoesNotReachAWeight) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes.push_back(node("MatMul", {"x", "other"}, {"value"}, "second_head"));
  model.initializers.push_back(tensor("other", kFloat, {4, 3}, raw(linear_weights())));
  model.outputs.push_back(declared("value", {-1, 3}));
  folder.write("model.onnx", model.bytes());
  expect_found(folder, kClasses + Words{"--prediction", "logits"},
               "the loss does not reach 1 initializer that could be trained: 'other'",
               "--prediction NAME");
}

TEST(DoctorTest, DeadUnits) {
  const ModelFolder folder;
  write_model(folder,
              {node("Add", {"x", "far"}, {"low"}, "lower"), node("Relu", {"low"}, {"dead"}, "relu"),
               node("MatMul", {"dead", "w"}, {"products"}, "multiply"),
               node("Add", {"products", "b"}, {"logits"}, "add")},
              {tensor("far", kFloat, {4}, raw<float>({-9, -9, -9, -9}))});
  expect_found(folder, kClasses, "the first gradient of 2 tensors is 0", "--resume FILE.onnx");
}

TEST(DoctorTest, ALabelOfNoClass) {
  const ModelFolder folder;
  write_labels(folder, {0, 1, 2, 255, 0, 1, 2, 0, 1, 2, 255, 0});
  expect_found(folder, kClasses, "label 255, but the prediction has classes 0..2",
               "--ignore-index 255");
  write_labels(folder, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  expect_found(folder, kClasses, "label 3 to 5, but", "--replace-head 6");
}

TEST(DoctorTest, LabelsThatAreAllTheSameOrIgnored) {
  const ModelFolder folder;
  write_labels(folder, std::vector<int64_t>(12, 2));
  expect_found(folder, kClasses, "all 12 labels are 2", "--labels COLUMN");
  write_labels(folder, std::vector<int64_t>(12, -100));
  expect_found(folder, kClasses, "all 12 labels are the ignore-index -100", "--ignore-index");
}

TEST(DoctorTest, SortedLabelsWithoutShuffling) {
  const ModelFolder folder;
  write_labels(folder, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  expect_found(folder, kClasses + Words{"--no-shuffle"}, "labels are sorted", "--shuffle");
  EXPECT_THAT(findings(folder, kClasses), testing::IsEmpty());
}

TEST(DoctorTest, PixelsThatNobodyNormalized) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes.insert(model.nodes.begin(), node("Flatten", {"image"}, {"x"}, "flatten"));
  std::vector<float> weights(48);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 5) * 1e-4f;
  model.initializers[0] = tensor("w", kFloat, {16, 3}, raw(weights));
  model.inputs = {declared("image", {-1, 1, 4, 4})};
  folder.write("model.onnx", model.bytes());
  std::vector<float> pixels(12 * 16);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(i * 37 % 256);
  folder.write("data/image.npy", npy("<f4", "(12, 1, 4, 4)", pixels));
  expect_found(folder, kClasses + Words{"--lr", "1e-6"}, "whole numbers from 0 to 255",
               "scale: 0.00392156862745098");
}

TEST(DoctorTest, ValuesThatAreNoNumbers) {
  const ModelFolder folder;
  std::vector<float> values(48, 0.5f);
  values[22] = std::nanf("");
  folder.write("data/x.npy", npy("<f4", "(12, 4)", values));
  expect_found(folder, kClasses, "sample 5 has a value that is NaN", "--data");
}

TEST(DoctorTest, PaddingThatCounts) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  model.nodes = {node("Gather", {"table", "ids"}, {"rows"}, "look_up"),
                 node("MatMul", {"rows", "w"}, {"products"}, "multiply"),
                 node("Add", {"products", "b"}, {"logits"}, "add")};
  std::vector<float> table(12);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 7) / 8 - 0.3f;
  model.initializers.push_back(tensor("table", kFloat, {3, 4}, raw(table)));
  model.inputs = {declared("ids", {-1, 6}, kInt64)};
  model.outputs = {declared("logits", {-1, 6, 3})};
  folder.write("model.onnx", model.bytes());
  std::vector<int64_t> ids(72), labels(72);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool padded = i % 6 >= 3;  // the second half in each row
    ids[i] = padded ? 0 : static_cast<int64_t>(1 + i % 2);
    labels[i] = padded ? 0 : static_cast<int64_t>(1 + (i + 1) % 2);
  }
  folder.write("data/ids.npy", npy("<i8", "(12, 6)", ids));
  folder.write("data/labels.npy", npy("<i8", "(12, 6)", labels));
  expect_found(folder, kClasses, "12 of 12 rows end in the number 0 repeated", "--ignore-index 0");
  EXPECT_THAT(findings(folder, kClasses + Words{"--ignore-index", "0"}), testing::IsEmpty());
}

// cross_entropy takes the scores before a Softmax, so the doctor finds only other ends.
TEST(DoctorTest, AnEndThatTheLossDoesNotTake) {
  const ModelFolder folder;
  const auto write_end = [&](const char* op) {
    write_model(folder, {node("MatMul", {"x", "w"}, {"products"}, "multiply"),
                         node("Add", {"products", "b"}, {"scores"}, "add"),
                         node(op, {"scores"}, {"logits"}, "end")});
  };
  write_end("Softmax");
  EXPECT_THAT(findings(folder, kClasses), testing::IsEmpty());
  expect_found(folder, {"--loss", "nll"}, "'logits' is a Softmax", "--prediction scores");
  write_end("Sigmoid");
  expect_found(folder, kClasses, "'logits' is a Sigmoid", "--prediction scores");
}

TEST(DoctorTest, ScoresForALossOfLogarithms) {
  expect_found(ModelFolder(), {"--loss", "nll"}, "nll takes logarithms", "--loss cross_entropy");
}

TEST(DoctorTest, AFirstLossFarFromChance) {
  const ModelFolder folder;
  SmallModel model = linear_model();
  std::vector<float> weights = linear_weights();
  for (float& w : weights) w *= 100;
  model.initializers[0] = tensor("w", kFloat, {4, 3}, raw(weights));
  folder.write("model.onnx", model.bytes());
  expect_found(folder, kClasses, "but guessing among 3 classes has 1.1", "--replace-head 3");
}

TEST(DoctorTest, MemoryThatDoesNotFit) {
  expect_found(ModelFolder(), kClasses + Words{"--memory-limit", "1KiB"},
               "memory: ", "--memory-limit");
}

TEST(DoctorTest, EvaluationOnTheTrainingData) {
  const ModelFolder folder;
  expect_found(folder, kClasses + Words{"--eval-data", folder / "data"},
               "the evaluation reads the files that training reads", "--eval-data");
  // Both parts of a split read the same files, but different rows.
  folder.write("split.yaml",
               "split: 0.5\ntrain:\n  x: {file: data/x.npy}\n"
               "  labels: {file: data/labels.npy}\n");
  EXPECT_THAT(findings(folder, kClasses + Words{"--data", folder / "split.yaml"}),
              testing::IsEmpty());
}

TEST(DoctorTest, ANanSaysItsNodesOperandsAndWhereNormsGrew) {
  const Finished run =
      Program::run(fsdp_run({"doctor", fixture("mlp/model.onnx"), "--steps", "30", "--loss",
                             "cross_entropy", "--optimizer", "sgd", "--lr", "1e30"}));
  EXPECT_EQ(run.status, 0) << run.err;
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_GE(lines.size(), 6u) << run.out;
  EXPECT_THAT(lines[0], testing::StartsWith("- --lr 1e+30: "));
  EXPECT_THAT(lines[0],
              HasSubstr("loss is NaN at step 2, rank 0: first made by node 'node_linear"));
  EXPECT_THAT(lines[0], HasSubstr("--find-lr"));
  EXPECT_THAT(lines[1], testing::StartsWith("  operands of 'node_linear"));
  EXPECT_THAT(lines[2], testing::StartsWith("    input   '"));
  EXPECT_EQ(lines[lines.size() - 2], "  norms: only step 1 was watched");
  EXPECT_EQ(lines.back(), "doctor: 1 finding");
}

TEST(DoctorTest, ALearningRateThatIsTooLarge) {
  expect_found(ModelFolder(), kClasses + Words{"--optimizer", "sgd", "--lr", "1000"},
               "--lr 1000: the loss rises from", "--find-lr");
}

TEST(DoctorTest, FindsALearningRateAndDrawsIt) {
  const ModelFolder folder;
  const std::string picture = folder / "lr.svg";
  const Finished run =
      Program::run(fsdp_run({"doctor", folder.model(), "--batch-size", "4", "--optimizer", "sgd",
                             "--find-lr", "--picture", picture}) +
                   kClasses);
  EXPECT_EQ(run.status, 0) << run.err;
  const size_t at = run.out.find("the loss falls fastest at --lr ");
  ASSERT_NE(at, std::string::npos) << run.out;
  const double lr = std::stod(run.out.substr(at + 31));
  EXPECT_GE(lr, 1e-3);
  EXPECT_LE(lr, 10);
  const std::string svg = onnx_bytes::content(picture);
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr("<polyline points="));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
}

TEST(DoctorTest, EvaluationDataThatTrainingRefuses) {
  const ModelFolder folder;
  std::vector<float> values(8, 0.5f);
  folder.write("eval/x.npy", npy("<f4", "(2, 4)", values));
  folder.write("eval/labels.npy", npy("<i8", "(2,)", std::vector<int64_t>{1, 3}));
  const Words words = kClasses + Words{"--eval-data", folder / "eval"};
  expect_found(folder, words, "eval/labels.npy", "--ignore-index");
  folder.write("eval/labels.npy", npy("<i8", "(2,)", std::vector<int64_t>{1, 2}));
  EXPECT_THAT(findings(folder, words), testing::IsEmpty());
  values[6] = std::nanf("");
  folder.write("eval/x.npy", npy("<f4", "(2, 4)", values));
  expect_found(folder, words, "evaluation sample 1 has a value that is NaN", "--eval-data");
}

// The same line as training's, of the doctor and, where it reads the option, of plan.
TEST(DoctorTest, RefusesWhatTrainingRefuses) {
  const ModelFolder folder;
  for (const Words& more :
       {Words{"--keep-best", "f1"}, Words{"--early-stop", "1"},
        Words{"--output", folder / "no/o.onnx"}, Words{"--output", folder.model()},
        Words{"--output", folder / "weights.safetensors"},
        Words{"--metrics", folder / "no/m.jsonl"}, Words{"--log", "csv:" + (folder / "no/l.csv")},
        Words{"--trace", folder / "no/t.json"}, Words{"--report", folder / "no/r.html"},
        Words{"--metrics", folder / "data/x.npy"}, Words{"--adapter", folder / "a.safetensors"}}) {
    const Words options = Words{folder.model(), "--loss", "cross_entropy"} + more;
    SCOPED_TRACE(joined(more, " "));
    const Finished train = Program::run(fsdp_run({}) + options);
    ASSERT_EQ(train.status, 2) << train.err;
    for (const char* command : {"doctor", "plan"}) {
      const Finished run = Program::run(fsdp_run({command}) + options);
      EXPECT_EQ(run.status, 2) << command;
      EXPECT_EQ(run.err, train.err) << command;
    }
  }
  EXPECT_THAT(findings(folder, kClasses + Words{"--metrics", folder / "m.jsonl", "--output",
                                                folder / "o.onnx"}),
              testing::IsEmpty());
  for (const char* command : {"doctor", "plan"}) {  // a training makes the folder
    const Finished run = Program::run(fsdp_run({command, folder.model(), "--loss", "cross_entropy",
                                                "--lora", "w", "--adapter", folder / "new/sub/"}));
    EXPECT_EQ(run.status, 0) << run.err;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  EXPECT_FALSE(std::filesystem::exists(folder / "m.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(folder / "o.onnx"));
}

TEST(DoctorTest, AWrongCommandIsRefusedAsElsewhere) {
  const ModelFolder folder;
  const Finished run =
      Program::run(fsdp_run({"doctor", folder.model(), "--loss", "cross_entropie"}));
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  const Finished train = Program::run(folder.train() + Words{"--find-lr"});
  EXPECT_EQ(train.status, 2);
}

}  // namespace doctor_test
}  // namespace ofsdp
