// Runs with --pack: BERT and GPT-2, as Hugging Face exports them with a mask [batch, tokens], train
// on documents that share rows as they train on separate documents. A model that mixes tokens in
// another way is refused.
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/device_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace pack_test {

using namespace onnx_bytes;

constexpr int64_t kLength = 32;
constexpr int kDocuments = 40;

class PackTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(5);
    std::string lines;
    for (int i = 0; i < kDocuments; ++i) {
      const auto length = static_cast<int64_t>(1 + random() % 20);
      nlohmann::json ids = nlohmann::json::array(), labels = nlohmann::json::array();
      for (int64_t k = 0; k < length; ++k) {
        ids.push_back(1 + random() % 120);
        labels.push_back(k % 5 == 4 ? -100 : static_cast<int64_t>(random() % 120));
      }
      lines += nlohmann::json{{"ids", ids}, {"labels", labels}, {"class", i % 3}}.dump() + "\n";
    }
    folder_.write("documents.jsonl", lines);
    folder_.write("documents.yaml", yaml("field: labels, pad_to: 32, pad_value: -100"));
  }

  static std::string yaml(const std::string& labels) {
    return "train:\n  input_ids: {file: documents.jsonl, field: ids, pad_to: 32}\n"
           "  attention_mask: auto\n  labels: {file: documents.jsonl, " +
           labels + "}\n";
  }

  Words train(const std::string& model, const Words& more) const {
    return fsdp_run({model, "--data", folder_ / "documents.yaml", "--loss", "cross_entropy", "--lr",
                     "0.01", "--metrics", folder_ / "m.jsonl", "--output",
                     folder_ / "trained.onnx"}) +
           more;
  }

  std::vector<nlohmann::json> steps(const Words& words) {
    last_ = Program::run(words);
    EXPECT_EQ(last_.status, 0) << last_.err;
    return rows_of(folder_ / "m.jsonl", "step");
  }

  ModelFolder folder_;
  Finished last_;
};

// An update over all documents has the mean over all their labels, whatever rows they share.
TEST_F(PackTest, DocumentsHaveTheLossesAndGradientsThatTheyHaveAlone) {
  for (const char* name : {"bert_tiny/model.onnx", "gpt2_tiny/model.onnx"}) {
    SCOPED_TRACE(name);
    const std::string model = fixture(name);
    const auto alone = steps(train(model, {"--batch-size", "40", "--steps", "3"}));
    const auto packed = steps(train(model, {"--pack", "32", "--batch-size", "40", "--steps", "3"}));
    EXPECT_THAT(last_.out,
                testing::ContainsRegex("--pack 32: 40 documents in 1[0-9] rows; 9[0-9] % "
                                       "of a row is no padding, 3[0-9] % without"));
    ASSERT_EQ(packed.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      const double loss = alone[i]["loss"], norm = alone[i]["grad_norm"];
      EXPECT_NEAR(packed[i]["loss"].get<double>(), loss, 2e-5 * loss) << i;
      EXPECT_NEAR(packed[i]["grad_norm"].get<double>(), norm, 1e-3 * norm) << i;
    }
  }
}

TEST_F(PackTest, RunsOnAnyRanksAndGoesOnInMidEpoch) {
  const Words words = train(fixture("gpt2_tiny/model.onnx"),
                            {"--pack", "32", "--global-batch-size", "6", "--epochs", "3"});
  const auto one = steps(words), two = steps(words + ranks(2));
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 1e-3) << i;
  }
  steps(words);
  const std::string expected = content(folder_ / "trained.onnx");
  const Words saving{"--checkpoint-dir", folder_ / "c", "--checkpoint-interval", "1step"};
  steps(words + saving + Words{"--steps", "4"});
  steps(words + saving + Words{"--resume", "latest"});
  EXPECT_TRUE(content(folder_ / "trained.onnx") == expected);
}

TEST_F(PackTest, EvaluatesPackedRowsAsDocuments) {
  const Words words =
      train(fixture("gpt2_tiny/model.onnx"), {"--eval-data", folder_ / "documents.yaml", "--steps",
                                              "2", "--batch-size", "4", "--lr", "1e-9"});
  steps(words);
  const auto alone = rows_of(folder_ / "m.jsonl", "eval");
  steps(words + Words{"--pack", "32"});
  const auto packed = rows_of(folder_ / "m.jsonl", "eval");
  ASSERT_FALSE(alone.empty());
  const double loss = alone.back()["loss"];
  EXPECT_NEAR(packed.back()["loss"].get<double>(), loss, 2e-5 * loss);
}

TEST_F(PackTest, DevicesGiveTheLossesOfTheCpu) {
  const Words words =
      fsdp_run({fixture("gpt2_tiny/model.onnx"), "--data", folder_ / "documents.yaml", "--loss",
                "cross_entropy", "--pack", "32", "--batch-size", "4", "--steps", "2"});
  const Trained cpu = on_cpu(words);
  expect_same_bits(cpu, run_on_device(OFSDP_COUNTING_DEVICE, words));
  expect_near_losses(cpu, run_on_device(OFSDP_EMULATED_DEVICE, words), 1e-4);
}

TEST_F(PackTest, Mistakes) {
  const std::string bert = fixture("bert_tiny/model.onnx");
  const auto refused = [&](const Words& words, const Words& facts) {
    const Finished run = Program::run(words);
    EXPECT_EQ(run.status, 2) << joined(words, " ");
    expect_one_line(run.err, facts);
  };
  refused(train(bert, {"--pack", "16"}), {"--pack 16: input 'input_ids' of", "expected --pack 32"});
  refused(train(bert, {"--pack", "32", "--bucket-by", "input_ids"}),
          {"--pack 32: expected rows of files without --bucket-by, found --bucket-by input_ids"});
  refused(train(bert, {"--pack", "32", "--teacher", bert}), {"--pack 32: expected no --teacher"});
  // A mean over the row's tokens mixes the documents.
  SmallModel model;
  const std::string kept = message(5, message(1, "keepdims") + number(3, 1) + number(20, 2));
  model.nodes = {constant_node("second", kInt64, {1}, raw<int64_t>({1})),
                 node("Gather", {"table", "input_ids"}, {"vectors"}, "embed"),
                 node("ReduceMean", {"vectors", "second"}, {"mean"}, "mix") + kept,
                 node("Add", {"vectors", "mean"}, {"hidden"}, "add"),
                 node("MatMul", {"hidden", "head"}, {"logits"}, "predict")};
  model.initializers = {tensor("table", kFloat, {128, 4}, raw(count_up(512))),
                        tensor("head", kFloat, {4, 128}, raw(count_up(512)))};
  model.inputs = {declared("input_ids", {-1, kLength}, kInt64)};
  model.outputs = {declared("logits", {-1, kLength, 128})};
  const std::string mixing = folder_.write("mixing.onnx", model.bytes());
  refused(train(mixing, {"--pack", "32"}),
          {"--pack 32: ", "output 'logits': expected the same numbers for a document"});
  folder_.write("documents.yaml", yaml("field: labels, pad_to: 32"));
  refused(train(bert, {"--pack", "32"}),
          {"column 'labels', sample ", "expected the ignore-index after the ",
           " entries that --pack counts, found 0 as entry ", "pad_value gives the ignore-index"});
  folder_.write("documents.yaml", yaml("field: class"));
  refused(train(bert, {"--pack", "32"}),
          {"--pack 32: column 'labels': expected an entry for each token, found rows of []"});
}

}  // namespace pack_test
}  // namespace ofsdp
