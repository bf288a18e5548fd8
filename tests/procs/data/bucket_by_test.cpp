// Runs with --bucket-by: cut rows train as whole rows do, in one order on any ranks, through a
// resume. Columns that must not be cut are refused.
#include <cmath>
#include <random>

#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace bucket_by_test {

using namespace onnx_bytes;

constexpr int64_t kVocabulary = 23, kWidth = 6, kLongest = 64;
constexpr int kRows = 300;

// [batch, tokens], and perhaps a third axis; `length` 0: the symbol `tokens`.
std::string rows_of_tokens(const std::string& name, int64_t length, int type, int64_t width = 0) {
  const std::string axis =
      length == 0 ? message(2, "tokens") : number(1, static_cast<uint64_t>(length));
  std::string shape = message(1, message(2, "batch")) + message(1, axis);
  if (width > 0) shape += message(1, number(1, static_cast<uint64_t>(width)));
  return message(1, name) +
         message(2, message(1, number(1, static_cast<uint64_t>(type)) + message(2, shape)));
}

// Each token's logits come from the token's vector and the mean vector of the row.
std::string token_model(int64_t length) {
  std::vector<float> table(kVocabulary * kWidth), head(kWidth * kVocabulary);
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<float>(i * 37 % 101) / 101 - 0.5f;
    head[i] = static_cast<float>(i * 53 % 89) / 89 - 0.5f;
  }
  const std::string float_type = message(5, message(1, "to") + number(3, 1) + number(20, 2));
  SmallModel model;
  model.nodes = {constant_node("last", kInt64, {1}, raw<int64_t>({-1})),
                 constant_node("second", kInt64, {1}, raw<int64_t>({1})),
                 node("Gather", {"table", "ids"}, {"vectors"}, "embed"),
                 node("Cast", {"attention_mask"}, {"flags"}, "cast") + float_type,
                 node("Unsqueeze", {"flags", "last"}, {"mask"}, "unsqueeze"),
                 node("Mul", {"vectors", "mask"}, {"kept"}, "keep"),
                 node("ReduceSum", {"kept", "second"}, {"sum"}, "sum"),
                 node("ReduceSum", {"mask", "second"}, {"count"}, "count"),
                 node("Div", {"sum", "count"}, {"mean"}, "mean"),
                 node("Add", {"vectors", "mean"}, {"hidden"}, "add"),
                 node("MatMul", {"hidden", "head"}, {"logits"}, "predict")};
  model.initializers = {tensor("table", kFloat, {kVocabulary, kWidth}, raw(table)),
                        tensor("head", kFloat, {kWidth, kVocabulary}, raw(head))};
  model.inputs = {rows_of_tokens("ids", length, kInt64),
                  rows_of_tokens("attention_mask", length, kInt64)};
  model.outputs = {rows_of_tokens("logits", length, kFloat, kVocabulary)};
  return model.bytes();
}

class BucketByTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(3);
    std::lognormal_distribution<double> draw(2.3, 0.8);
    std::string lines;
    for (int i = 0; i < kRows; ++i) {
      const auto drawn = static_cast<int64_t>(draw(random));
      const int64_t length = i == 0 ? kLongest : std::clamp<int64_t>(drawn, 1, kLongest);
      nlohmann::json ids = nlohmann::json::array();
      for (int64_t k = 0; k < length; ++k) ids.push_back((i * 7 + k * 5) % kVocabulary);
      lines += nlohmann::json{{"ids", ids}}.dump() + "\n";
    }
    folder_.write("rows.jsonl", lines);
    folder_.write("rows.yaml", yaml("-100"));
    folder_.write("open.onnx", token_model(0));
    folder_.write("fixed.onnx", token_model(kLongest));
  }

  static std::string yaml(const std::string& ignored) {
    return "train:\n  ids: {file: rows.jsonl, field: ids, pad_to: longest}\n"
           "  attention_mask: auto\n"
           "  labels: {file: rows.jsonl, field: ids, pad_to: longest, pad_value: " +
           ignored + "}\n";
  }

  Words train(const std::string& model, int count, int64_t batch = 4) const {
    return fsdp_run({folder_ / model, "--data", folder_ / "rows.yaml", "--bucket-by", "ids",
                     "--loss", "cross_entropy", "--lr", "0.05", "--global-batch-size", "12",
                     "--batch-size", std::to_string(batch), "--epochs", "2", "--metrics",
                     folder_ / "m.jsonl", "--output", folder_ / "trained.onnx"}) +
           ranks(count);
  }

  std::vector<double> losses(const Words& words) {
    last_ = Program::run(words);
    EXPECT_EQ(last_.status, 0) << last_.err;
    return losses_of(folder_ / "m.jsonl");
  }

  static void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5 * std::abs(b[i])) << i;
  }

  ModelFolder folder_;
  Finished last_;
};

TEST_F(BucketByTest, CutRowsTrainAsWholeOnesOnAnyRanks) {
  const std::vector<double> whole = losses(train("fixed.onnx", 1));
  EXPECT_THAT(last_.out, testing::HasSubstr("stay whole: the model fixes their length"));
  ASSERT_EQ(whole.size(), 50u);
  for (const int count : {1, 3}) {
    expect_near(losses(train("open.onnx", count)), whole);
    EXPECT_THAT(last_.out, testing::ContainsRegex("rows of 1 to 64 entries are cut to 8, 16, .*, "
                                                  "56; [0-9]+ % of a batch is no padding"));
  }
  expect_near(losses(train("open.onnx", 2, 6)), whole);
  const Words across{"--deterministic", "across_ranks"};
  losses(train("open.onnx", 1) + across);
  const std::string expected = content(folder_ / "trained.onnx");
  losses(train("open.onnx", 3) + across);
  EXPECT_TRUE(content(folder_ / "trained.onnx") == expected);
}

TEST_F(BucketByTest, AResumedRunGoesOnAtTheNextSample) {
  const std::vector<double> whole = losses(train("open.onnx", 1));
  const std::string bits = content(folder_ / "trained.onnx");
  const Words saving{"--checkpoint-dir", folder_ / "c", "--checkpoint-interval", "1step"};
  losses(train("open.onnx", 1) + saving + Words{"--steps", "17"});
  losses(train("open.onnx", 3) + saving + Words{"--steps", "31", "--resume", "latest"});
  expect_near(losses(train("open.onnx", 1) + saving + Words{"--resume", "latest"}), whole);
  std::filesystem::remove_all(folder_ / "c");
  losses(train("open.onnx", 1) + saving + Words{"--steps", "17"});
  losses(train("open.onnx", 1) + saving + Words{"--resume", "latest"});
  EXPECT_TRUE(content(folder_ / "trained.onnx") == bits);
}

TEST_F(BucketByTest, Mistakes) {
  expect_refused(folder_, train("open.onnx", 1, 6) + Words{"--bucket-by", "idz"},
                 {"--bucket-by idz: expected a column of", "found: ids, labels, attention_mask",
                  "did you mean 'ids'?"});
  folder_.write("rows.yaml", yaml("3"));
  const Finished run = Program::run(train("open.onnx", 1));
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"rows.jsonl: column 'labels', sample ",
                            "expected the ignore-index after the ", "found 3 as entry "});
  const Finished made = Program::run(fsdp_run(
      {folder_ / "fixed.onnx", "--data", "synthetic", "--bucket-by", "ids", "--steps", "1"}));
  EXPECT_EQ(made.status, 2);
  expect_one_line(made.err, {"--bucket-by ids: expected rows of files"});
}

}  // namespace bucket_by_test
}  // namespace ofsdp
