// A vocabulary of 1003, like a language model's of 50257: rows of logits lie 1024 apart on a device
// with kernels that take that, here in the CUDA library (tests/device/emulated). The plan reports
// it and counts the bytes; the losses are the CPU's.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace row_pitch_runs_test {

using onnx_bytes::declared;
using onnx_bytes::Folder;
using onnx_bytes::kFloat;
using onnx_bytes::kInt64;
using onnx_bytes::node;
using onnx_bytes::raw;
using onnx_bytes::tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kVocabulary = 1003, kWidth = 8, kLength = 4, kSamples = 12;

std::vector<float> small_numbers(int64_t count) {
  std::vector<float> made;
  for (int64_t i = 0; i < count; ++i)
    made.push_back(static_cast<float>((i * 37) % 101) / 101 - 0.5f);
  return made;
}

// Tokens [batch, 4] -> logits [batch, 4, 1003] by the embedding's own weights, as in GPT-2; with a
// bias after them, as in BERT.
std::string language_model(bool biased) {
  onnx_bytes::SmallModel model;
  model.nodes = {node("Gather", {"embedding", "ids"}, {"x"}, "embed"),
                 node("LayerNormalization", {"x", "scale", "shift"}, {"h"}, "norm"),
                 node("Transpose", {"embedding"}, {"transposed"}, "transpose"),
                 node("MatMul", {"h", "transposed"}, {biased ? "products" : "logits"}, "head")};
  if (biased) model.nodes.push_back(node("Add", {"products", "bias"}, {"logits"}, "add"));
  model.initializers = {
      tensor("embedding", kFloat, {kVocabulary, kWidth}, raw(small_numbers(kVocabulary * kWidth))),
      tensor("scale", kFloat, {kWidth}, raw(std::vector<float>(kWidth, 1))),
      tensor("shift", kFloat, {kWidth}, raw(std::vector<float>(kWidth, 0)))};
  if (biased) {
    model.initializers.push_back(
        tensor("bias", kFloat, {kVocabulary}, raw(small_numbers(kVocabulary))));
  }
  model.inputs = {declared("ids", {-1, kLength}, kInt64)};
  model.outputs = {declared("logits", {-1, kLength, kVocabulary})};
  return model.bytes();
}

// A folder with the model and data; `label` is one label.
struct Files {
  explicit Files(bool biased, int64_t label = 5)
      : model(folder.write("m.onnx", language_model(biased))) {
    std::vector<int64_t> ids, labels;
    for (int64_t i = 0; i < kSamples * kLength; ++i) {
      ids.push_back((i * 211 + 3) % kVocabulary);
      labels.push_back(i % 5 == 2 ? -100 : (i * 97 + 11) % kVocabulary);
    }
    labels[9] = label;
    const std::string shape = format_text("({}, {})", kSamples, kLength);
    folder.write("data/ids.npy", testing_data::npy("<i8", shape, ids));
    folder.write("data/labels.npy", testing_data::npy("<i8", shape, labels));
  }

  Words command(const Words& first = {}) const {
    return fsdp_run(first + Words{model, "--loss", "cross_entropy", "--data", folder / "data",
                                  "--eval-data", folder / "data", "--batch-size", "5", "--epochs",
                                  "1", "--no-shuffle", "--nproc-per-node", "1"});
  }

  Folder folder;
  std::string model;
};

const char* const kEmulated = "OFSDP_CUDA_LIBRARY=" OFSDP_EMULATED_DEVICE;

std::string plan_of(const Words& command, const Words& more = {}) {
  const Finished run =
      Program::run(command + Words{"--device", "cuda"} + more, {.environment = {kEmulated}});
  EXPECT_EQ(run.status, 0) << run.err;
  return run.out;
}

TEST(RowPitchRuns, GiveTheLossesOfTheCpu) {
  for (const bool biased : {false, true}) {
    const Files files(biased);
    for (const char* dtype : {"float32", "bfloat16", "float16"}) {
      SCOPED_TRACE(std::string(biased ? "biased " : "") + dtype);
      const Words command = files.command() + Words{"--param-dtype", dtype};
      const Trained cpu = on_cpu(command), device = run_on_device(OFSDP_EMULATED_DEVICE, command);
      expect_near_losses(cpu, device, dtype == std::string("float32") ? 5e-5 : 5e-3);
    }
  }
}

// The same lines with and without a graph, and with the loss separate from the gradient.
TEST(RowPitchRuns, HaveTheSameBitsInEveryForm) {
  const Files files(true);
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const Words command = files.command() + Words{"--param-dtype", dtype};
    const Trained first = run_on_device(OFSDP_EMULATED_DEVICE, command);
    expect_same_bits(first,
                     run_on_device(OFSDP_EMULATED_DEVICE, command, {"--cuda-graph", "off"}, 2));
    expect_same_bits(
        first,
        train(command, {"--device", "cuda"},
              {kEmulated, "COUNTING_DEVICE_WITHOUT=ofsdp.SoftmaxCrossEntropyLossWithGradient"}));
  }
}

TEST(RowPitchRuns, ThePlanHasThePitchAndItsBytes) {
  const Files files(true);
  const Words command = files.command({"plan"});
  const std::string text = plan_of(command, {"--schedule"});
  EXPECT_THAT(text, HasSubstr("rows: 'head.product' float32[20, 1003] in rows of 1024, "
                              "'loss' float32[20, 1003] in rows of 1024\n"));
  EXPECT_THAT(text, HasSubstr("ofsdp.SoftmaxCrossEntropyLossWithGradient 'loss'"));
  const auto json = nlohmann::json::parse(plan_of(command, {"--json"}));
  const auto& training = json.at("programs").back();
  ASSERT_EQ(training.at("training"), true);
  const nlohmann::json wanted{{{"node", "head.product"}, {"row", 1003}, {"pitch", 1024}},
                              {{"node", "loss"}, {"row", 1003}, {"pitch", 1024}}};
  EXPECT_EQ(training.at("rows"), wanted);
}

// The full batch's steps that make or read rows with a pitch, without the numbers of nodes and
// offsets.
std::vector<std::string> pitched_steps(const std::string& operations) {
  const std::string head = "\ntraining of 5 samples\n";
  const size_t begin = operations.find(head) + head.size();
  const std::string part = operations.substr(begin, operations.find("\n\n", begin) - begin);
  std::vector<std::string> steps;
  for (const std::string& line : lines_of(part)) {
    if (line.find("in rows of") == std::string::npos) continue;
    const std::string bare = std::regex_replace(line, std::regex("\\+[0-9]+\\["), "[");
    steps.push_back(std::regex_replace(bare, std::regex("^ *[0-9]+ Run n[0-9]+ "), ""));
  }
  return steps;
}

TEST(RowPitchRuns, TheHeadIsAProductTheLossWithItsGradientAndTwoProducts) {
  const Files files(true);
  const std::string text = plan_of(files.command({"plan"}), {"--operations"});
  const std::string logits = "arena[20480 float32 in rows of 1024]";
  EXPECT_THAT(
      pitched_steps(text),
      ElementsAre("arena[160 float32] state[8024 float32] state[1003 float32] " + logits +
                      " w arena[1000 uint8] w",
                  "loss-weight[1 float32] " + logits + " input 1 arena[1 float32] w " + logits +
                      " w arena[184 uint8] w",
                  logits + " state[8024 float32] arena[160 float32] w arena[1000 uint8] w",
                  logits + " arena[160 float32] shared[8024 float32] w shared[1003 float32] w "
                           "arena[1000 uint8] w"));
  const std::regex in_place(
      "loss-weight\\S* \\S+ (arena\\+[0-9]+)\\[20480 [^\\]]*\\] input 1 \\S+ \\S+ w "
      "(arena\\+[0-9]+)\\[20480");
  std::smatch places;
  ASSERT_TRUE(std::regex_search(text, places, in_place));
  EXPECT_EQ(places[1], places[2]) << "the gradient lies where the scores lay";
}

TEST(RowPitchRuns, TheCpuHasNone) {
  const Files files(false);
  const Finished plan =
      Program::run(files.command({"plan"}) + Words{"--device", "cpu", "--schedule"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, Not(HasSubstr("in rows of")));
}

// The host repeats the node with the CPU's kernel, which takes only dense rows.
TEST(RowPitchRuns, ALabelOutOfRangeEndsTheRunWithTheLineOfTheCpu) {
  const Files files(true, kVocabulary + 20);
  const Finished cpu = Program::run(files.command() + Words{"--device", "cpu"});
  const Finished device =
      Program::run(files.command() + Words{"--device", "cuda"}, {.environment = {kEmulated}});
  EXPECT_EQ(cpu.status, 2);
  EXPECT_THAT(cpu.err, HasSubstr(std::to_string(kVocabulary + 20)));
  EXPECT_EQ(device.status, cpu.status);
  EXPECT_EQ(device.err, cpu.err);
}

}  // namespace row_pitch_runs_test
}  // namespace ofsdp
