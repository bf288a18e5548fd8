// fsdp-run check: right models agree with the references, a wrong gradient is named with its
// parameter and node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// A gradient that is half as large again.
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

// Rounding to integers has a derivative of 0; training goes straight through.
TEST(Check, AgreesOnModelsThatQuantize) {
  for (const std::string name : {"pairs", "pairs_channel", "qlinear", "dynamic"}) {
    const Finished run = checked("quantized/" + name + "/model.onnx",
                                 {"--loss", "cross_entropy", "--directions", "2", "--json"});
    EXPECT_EQ(run.status, 0) << name << run.err;
    EXPECT_GE(report_of(run)["parameters"].size(), 3u) << name;
  }
}

// A number that is added to all logits changes no loss: its derivative is rounding, here far from
// the 0 of the reference as the only other parameter is multiplied by little.
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
