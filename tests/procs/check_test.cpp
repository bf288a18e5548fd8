// fsdp-run check: right models agree with the references; a wrong gradient is named with the
// parameter and the node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/small_model.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace check_test {

using nlohmann::json;
using testing::HasSubstr;

Finished checked(const std::string& model, const Words& more, const Start& start = {}) {
  return Program::run(fsdp_run({"check", fixture(model)}) + more, start);
}

json report_of(const Finished& run) { return json::parse(run.out, nullptr, false); }

TEST(Check, AgreesWithTheReferences) {
  const Finished run = checked("mlp/model.onnx", {"--loss", "cross_entropy", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const json report = report_of(run);
  EXPECT_NEAR(report["loss"][0], double(report["loss"][1]), 2e-4 * double(report["loss"][1]));
  EXPECT_GE(report["parameters"].size(), 4u);
  for (const auto& [name, difference] : report["parameters"].items()) {
    EXPECT_LT(double(difference), 2e-3) << name;
  }
  EXPECT_EQ(report["not_checked"], json::array());
  EXPECT_TRUE(report["node"].is_null());
  EXPECT_TRUE(report["parameters"].contains(report["worst"]));
}

TEST(Check, AgreesInBfloat16AndOnSeveralRanks) {
  const std::vector<std::pair<std::string, Words>> models = {
      {"mlp/model.onnx", {"--loss", "cross_entropy", "--param-dtype", "bfloat16"}},
      {"mlp/model.onnx",
       {"--loss", "cross_entropy", "--strategy", "zero1", "--nproc-per-node", "2"}}};
  for (const auto& [model, words] : models) {
    const Finished run = checked(model, words);
    EXPECT_EQ(run.status, 0) << model << run.err << run.out;
    EXPECT_THAT(run.out, HasSubstr("agree"));
  }
}

// The lowest float, or another that a mask is made of, swallows the scores: a row is uniform in
// float32 and passes a gradient on; no difference of losses shows it. A masked part is no matter.
TEST(Check, LeavesRowsThatAreMaskedWholeUndecided) {
  const onnx_bytes::Folder folder;
  folder.write("data/x.npy", onnx_bytes::linear_inputs());
  folder.write("data/labels.npy", onnx_bytes::linear_labels());
  const auto masked = [&](const std::vector<float>& mask) {
    onnx_bytes::SmallModel model = onnx_bytes::linear_model();
    model.nodes = {
        onnx_bytes::constant_node("mask", onnx_bytes::kFloat, {3}, onnx_bytes::raw(mask)),
        onnx_bytes::node("MatMul", {"x", "w"}, {"products"}, "multiply"),
        onnx_bytes::node("Add", {"products", "mask"}, {"scores"}, "add"),
        onnx_bytes::node("Softmax", {"scores"}, {"shares"}, "share"),
        onnx_bytes::node("MatMul", {"shares", "v"}, {"logits"}, "mix")};
    model.initializers[1] = onnx_bytes::tensor(
        "v", onnx_bytes::kFloat, {3, 3},
        onnx_bytes::raw<float>({1.f, 0.5f, -0.5f, 0.25f, -1.f, 2.f, 0.f, 0.75f, 0.125f}));
    folder.write("model.onnx", model.bytes());
    return Program::run(fsdp_run({"check", folder / "model.onnx", "--loss", "cross_entropy"}));
  };
  const float lowest = std::numeric_limits<float>::lowest();
  const Finished run = masked({lowest, lowest, lowest});
  EXPECT_EQ(run.status, 0) << run.err << run.out;
  EXPECT_THAT(run.out, HasSubstr("not decided: w: "));
  EXPECT_THAT(run.out, HasSubstr("away, rows of 'share' are masked whole, so rounding decides"));
  EXPECT_THAT(run.out, HasSubstr("check: 1 parameter agrees, 1 not decided"));
  const Finished billions = masked({-1e9f, -1e9f, -1e9f});
  EXPECT_EQ(billions.status, 0) << billions.err << billions.out;
  EXPECT_THAT(billions.out, testing::Not(HasSubstr("  wrong")));
  const Finished part = masked({0, lowest, 0});
  EXPECT_EQ(part.status, 0) << part.err << part.out;
  EXPECT_THAT(part.out, HasSubstr("check: 2 parameters agree\n"));
}

// A gradient that is too large by half.
TEST(Check, NamesTheNodeAndParameterOfAWrongGradient) {
  const Words words = {"--plugin", OFSDP_BAD_PLUGIN, "--loss", "cross_entropy"};
  const Start wrong{.environment = {"OFSDP_BAD_PLUGIN=wrong_gradient"}, .patience = 120};
  const Finished run = checked("plugins/scaled_tanh/model.onnx", words + Words{"--json"}, wrong);
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  const json report = report_of(run);
  const std::string worst = report["worst"], node = report["node"];
  EXPECT_GT(double(report["parameters"][worst]), 0.1);
  EXPECT_THAT(run.err, HasSubstr("'" + worst + "'"));
  EXPECT_THAT(run.err, HasSubstr("'" + node + "'"));
  const std::string model = onnx_bytes::content(fixture("plugins/scaled_tanh/model.onnx"));
  EXPECT_THAT(model, HasSubstr(node));
  const Words good = {"--plugin", OFSDP_EXAMPLE_PLUGINS "/libscaled_tanh.so", "--loss",
                      "cross_entropy"};
  const Finished right = checked("plugins/scaled_tanh/model.onnx", good);
  EXPECT_EQ(right.status, 0) << right.err << right.out;
}

TEST(Check, NamesAGradientThatIsAFewPercentWrong) {
  const Words words = {"--plugin", OFSDP_BAD_PLUGIN, "--loss", "cross_entropy", "--json"};
  for (const double factor : {1.01, 1.03, 1.1, 0.97}) {
    const Start wrong{.environment = {"OFSDP_BAD_PLUGIN=wrong_gradient:" + std::to_string(factor)},
                      .patience = 120};
    const Finished run = checked("plugins/scaled_tanh/model.onnx", words, wrong);
    EXPECT_EQ(run.status, 1) << factor << run.out;
    const json report = report_of(run);
    const std::string worst = report["worst"];
    EXPECT_GT(double(report["parameters"][worst]), 0.5 * std::abs(factor - 1)) << worst;
    EXPECT_TRUE(report["not_checked"].empty()) << run.out;
  }
}

// Each row is one number, 512 times, normalized as in JAX: E[x^2] - E[x]^2 is rounding, and so is
// the derivative of every node before it. `ScaledTanh` comes after it.
std::string flat_rows() {
  using namespace onnx_bytes;
  constexpr int64_t kWidth = 512;
  std::vector<float> bias, head;
  for (int64_t i = 0; i < 3 * kWidth; ++i) {
    head.push_back(0.05f * std::sin(static_cast<float>(i)));
    if (i < kWidth) bias.push_back(std::cos(static_cast<float>(i)));
  }
  SmallModel model;
  model.domains = {"com.example"};
  model.nodes = {node("MatMul", {"x", "w"}, {"one"}, "project"),
                 node("Expand", {"one", "wide"}, {"h"}, "repeat"),
                 node("ReduceMean", {"h", "axis"}, {"mean"}, "mean"),
                 node("Mul", {"h", "h"}, {"squares"}, "square"),
                 node("ReduceMean", {"squares", "axis"}, {"mean_square"}, "mean_square"),
                 node("Mul", {"mean", "mean"}, {"squared_mean"}, "squared_mean"),
                 node("Sub", {"mean_square", "squared_mean"}, {"variance"}, "variance"),
                 node("Max", {"variance", "zero"}, {"positive"}, "positive"),
                 node("Add", {"positive", "epsilon"}, {"moved"}, "move"),
                 node("Sqrt", {"moved"}, {"deviation"}, "deviation"),
                 node("Sub", {"h", "mean"}, {"centred"}, "centre"),
                 node("Div", {"centred", "deviation"}, {"normal"}, "normalize"),
                 node("Mul", {"normal", "scale"}, {"scaled"}, "scale_it"),
                 node("Add", {"scaled", "bias"}, {"shifted"}, "shift"),
                 node("ScaledTanh", {"shifted"}, {"bent"}, "bend", "com.example"),
                 node("MatMul", {"bent", "head"}, {"logits"}, "classify")};
  model.initializers = {tensor("w", kFloat, {4, 1}, raw<float>({0.5f, -1.25f, 0.75f, 0.125f})),
                        tensor("scale", kFloat, {kWidth}, raw(std::vector<float>(kWidth, 1))),
                        tensor("bias", kFloat, {kWidth}, raw(bias)),
                        tensor("head", kFloat, {kWidth, 3}, raw(head)),
                        tensor("axis", kInt64, {1}, raw<int64_t>({-1})),
                        tensor("wide", kInt64, {2}, raw<int64_t>({1, kWidth})),
                        tensor("zero", kFloat, {}, raw<float>({0})),
                        tensor("epsilon", kFloat, {}, raw<float>({1e-6f}))};
  model.inputs = {declared("x", {-1, 4})};
  model.outputs = {declared("logits", {-1, 3})};
  return model.bytes();
}

TEST(Check, TellsAWrongGradientFromOneThatIsRounding) {
  const onnx_bytes::Folder folder;
  const std::string path = folder.write("model.onnx", flat_rows());
  const Words words = {"check",     path,     "--plugin",      OFSDP_BAD_PLUGIN, "--data",
                       "synthetic", "--loss", "cross_entropy", "--json"};
  for (const std::string seed : {"1", "2", "3", "4", "5", "6"}) {
    const Words more = words + Words{"--seed", seed};
    const Finished right = Program::run(fsdp_run(more), {.patience = 120});
    EXPECT_EQ(right.status, 0) << seed << right.err << right.out;
    const Start wrong{.environment = {"OFSDP_BAD_PLUGIN=wrong_gradient:1.03"}, .patience = 120};
    const Finished named = Program::run(fsdp_run(more), wrong);
    EXPECT_EQ(named.status, 1) << seed << named.out;
    EXPECT_THAT(named.err, HasSubstr("'bias'")) << seed;
  }
}

// Rounding to integers has derivative 0; training goes straight through.
TEST(Check, AgreesOnModelsThatQuantize) {
  for (const std::string name : {"pairs", "pairs_channel", "qlinear", "dynamic"}) {
    const Finished run = checked("quantized/" + name + "/model.onnx",
                                 {"--loss", "cross_entropy", "--directions", "2", "--json"});
    EXPECT_EQ(run.status, 0) << name << run.err;
    EXPECT_GE(report_of(run)["parameters"].size(), 3u) << name;
  }
}

// Among 49,152 numbers some lie next to a border between two integers and fall on the other side in
// float32, which moves others; then derivatives differ by percents.
std::string quantized_layers() {
  using namespace onnx_bytes;
  constexpr int64_t kWidth = 48;
  constexpr int kLayers = 5, kInt8 = 3;
  SmallModel model;
  model.initializers = {tensor("zero", kInt8, {}, raw<int8_t>({0})),
                        tensor("step", kFloat, {}, raw<float>({0.02f}))};
  std::string x = "x";
  float angle = 0;
  for (int i = 0; i < kLayers; ++i) {
    const std::string n = std::to_string(i);
    const bool last = i + 1 == kLayers;
    const int64_t columns = last ? 3 : kWidth;
    std::vector<float> w(static_cast<size_t>(kWidth * columns));
    for (float& v : w) v = 0.3f * std::sin(angle++);
    model.initializers.push_back(tensor("w" + n, kFloat, {kWidth, columns}, raw(w)));
    model.nodes.push_back(node("QuantizeLinear", {x, "step", "zero"}, {"q" + n}, "quantize" + n));
    model.nodes.push_back(
        node("DequantizeLinear", {"q" + n, "step", "zero"}, {"d" + n}, "back" + n));
    model.nodes.push_back(
        node("MatMul", {"d" + n, "w" + n}, {last ? "logits" : "m" + n}, "product" + n));
    x = "t" + n;
    if (!last) model.nodes.push_back(node("Tanh", {"m" + n}, {x}, "bend" + n));
  }
  model.inputs = {declared("x", {-1, kWidth})};
  model.outputs = {declared("logits", {-1, 3})};
  return model.bytes();
}

TEST(Check, RoundsToIntegersOnTheSideThatTrainingTook) {
  const onnx_bytes::Folder folder;
  const Words words = {"check",        folder.write("model.onnx", quantized_layers()),
                       "--data",       "synthetic",
                       "--loss",       "cross_entropy",
                       "--batch-size", "256",
                       "--directions", "1",
                       "--json"};
  for (const std::string seed : {"1", "2", "3", "4", "5", "6"}) {
    const Finished run = Program::run(fsdp_run(words + Words{"--seed", seed}), {.patience = 120});
    ASSERT_EQ(run.status, 0) << run.err;
    const json report = report_of(run);
    EXPECT_EQ(report["not_checked"], json::array()) << seed;
    for (const auto& [name, difference] : report["parameters"].items()) {
      EXPECT_LT(double(difference), 1e-3) << seed << name;
    }
  }
}

// A number added to all logits changes no loss, so its derivative is rounding. Here it is far from
// the reference's 0, because the other parameter is multiplied by a small number.
TEST(Check, TellsTheRawDifferenceAndWhatRoundingExplains) {
  onnx_bytes::SmallModel model = onnx_bytes::linear_model();
  model.nodes = {onnx_bytes::node("Mul", {"x", "little"}, {"less"}, "shrink"),
                 onnx_bytes::node("MatMul", {"less", "w"}, {"products"}, "multiply"),
                 onnx_bytes::node("Add", {"products", "shift"}, {"logits"}, "add")};
  model.initializers[1] =
      onnx_bytes::tensor("shift", onnx_bytes::kFloat, {1}, onnx_bytes::raw<float>({0.3f}));
  model.initializers.push_back(
      onnx_bytes::tensor("little", onnx_bytes::kFloat, {}, onnx_bytes::raw<float>({0.001f})));
  const onnx_bytes::Folder folder;
  const Words words = {"check",    folder.write("model.onnx", model.bytes()),
                       "--data",   "synthetic",
                       "--loss",   "cross_entropy",
                       "--seed",   "2",
                       "--freeze", "little"};
  const Finished run = Program::run(fsdp_run(words + Words{"--json"}), {});
  ASSERT_EQ(run.status, 0) << run.err << run.out;
  const json report = report_of(run);
  const double raw = report["parameters"]["shift"], allowed = report["rounding"]["shift"];
  EXPECT_GT(raw, 2e-3);
  EXPECT_GT(allowed + 2e-3, raw);
  EXPECT_FALSE(report["rounding"].contains("w"));
  EXPECT_TRUE(report["rounding"].contains("loss"));
  EXPECT_THAT(Program::run(fsdp_run(words), {}).out, HasSubstr("may be rounding"));
}

// One pass over all 64 rows takes more than a 200th of the limit.
TEST(Check, TakesFewerRowsSoThatParametersHaveTime) {
  const Finished run = checked(
      "mlp/model.onnx", {"--loss", "cross_entropy", "--batch-size", "64", "--limit", "0.2s"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, testing::MatchesRegex("[1-9][0-9]? of the 64 rows of the first batch.*"));
}

TEST(Check, TakesAllRowsWhereTheDataHasFewerThanABatch) {
  const Finished run =
      checked("fused/fused.onnx", {"--loss", "cross_entropy", "--directions", "1"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("11 parameters agree"));
  EXPECT_THAT(run.out, testing::Not(HasSubstr("rows of the first batch")));
}

TEST(Check, SaysWhatItDidNotComeTo) {
  const Finished run =
      checked("mlp/model.onnx", {"--loss", "cross_entropy", "--json", "--limit", "0.000001s"});
  EXPECT_EQ(run.status, 0) << run.err;
  const json report = report_of(run);
  EXPECT_GE(report["not_checked"].size(), 4u);
  EXPECT_EQ(report["parameters"], json::object());
}

TEST(Check, RefusesWhatItCannotRead) {
  const Finished run = checked("mlp/model.onnx", {"--limit", "soon"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("--limit"));
  EXPECT_THAT(run.err, HasSubstr("a time such as 60s or 5m"));
}

}  // namespace check_test
}  // namespace ofsdp
