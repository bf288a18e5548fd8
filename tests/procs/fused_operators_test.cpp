// Operators from ONNX Runtime's optimizers and model builders: a file with them trains like the
// plain file with the same initializers (tests/fixtures/fused/make.py makes both).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "importer/file/onnx_file.h"
#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace fused_operators_test {

using ::testing::HasSubstr;
using ::testing::Not;

struct Trained {
  Finished run;
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> weights;
};

Words training(const std::string& model) {
  return fsdp_run({fixture("fused/" + model), "--data", fixture("fused/data"), "--loss",
                   "cross_entropy", "--batch-size", "2", "--epochs", "2", "--no-shuffle",
                   "--optimizer", "sgd", "--lr", "0.1", "--device", "cpu"});
}

Trained trained(const std::string& model, const Words& more) {
  const onnx_bytes::Folder folder;
  const std::string output = folder / "trained.onnx", metrics = folder / "metrics.jsonl";
  Trained made{
      Program::run(training(model) + more + Words{"--output", output, "--metrics", metrics}),
      {},
      {}};
  EXPECT_EQ(made.run.status, 0) << made.run.err;
  if (made.run.status != 0) return made;
  made.losses = losses_of(metrics);
  const auto file = OnnxFile::open(output);
  for (const Initializer& weight : file->initializers()) {
    auto& values = made.weights[weight.name];
    values.resize(static_cast<size_t>(weight.shape.numel()));
    EXPECT_TRUE(file->read(weight, 0, values).ok());
  }
  return made;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_FALSE(found.empty());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 2e-6 * expected[i]) << "step " << i + 1;
  }
}

TEST(FusedOperators, TrainAsThePlainGraph) {
  for (const int world : {1, 2}) {
    SCOPED_TRACE(world);
    const Trained plain =
        trained("plain.onnx", ranks(world) + Words{"--freeze", "*_cache", "--freeze", "causal"});
    const Trained fused = trained("fused.onnx", ranks(world) + Words{"--verbose", "on"});
    EXPECT_THAT(fused.run.out, HasSubstr("past: past.key and 1 more input are fed empty"));
    EXPECT_THAT(fused.run.out, HasSubstr("keep    cos_cache"));
    expect_near(fused.losses, plain.losses);
    for (const auto& [name, values] : fused.weights) {
      const auto& expected = plain.weights.at(name);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], expected[i], 2e-6) << name << " element " << i;
      }
    }
  }
}

TEST(FusedOperators, HaveTheSameBitsUnderEveryStrategy) {
  const Trained sharded = trained("fused.onnx", ranks(2));
  EXPECT_EQ(trained("fused.onnx", ranks(2) + Words{"--strategy", "no_shard"}).weights,
            sharded.weights);
}

// A decoder of onnxruntime-genai's model builder (tests/oracle/make_builder.py). Rows have 1 to 7
// tokens, and attention_mask tells which.
TEST(FusedOperators, FileOfABuilderWithRowsOfUnequalLength) {
  std::vector<double> expected;
  std::ifstream lines(fixture("builder/losses.txt"));
  for (double loss = 0; lines >> loss;) expected.push_back(loss);
  for (const int world : {1, 2}) {
    std::string bytes;
    for (const char* strategy : {"full_shard", "no_shard"}) {
      SCOPED_TRACE(format_text("{} ranks, {}", world, strategy));
      const onnx_bytes::Folder folder;
      const std::string output = folder / "trained.onnx", metrics = folder / "metrics.jsonl";
      const Finished run = Program::run(fsdp_run({fixture("builder/model.onnx"),
                                                  "--data",
                                                  fixture("builder/data"),
                                                  "--loss",
                                                  "cross_entropy",
                                                  "--global-batch-size",
                                                  "8",
                                                  "--steps",
                                                  "6",
                                                  "--epochs",
                                                  "9",
                                                  "--no-shuffle",
                                                  "--optimizer",
                                                  "adamw",
                                                  "--lr",
                                                  "0.004",
                                                  "--weight-decay",
                                                  "0.1",
                                                  "--betas",
                                                  "0.9,0.95",
                                                  "--clip-grad-norm",
                                                  "1",
                                                  "--device",
                                                  "cpu",
                                                  "--strategy",
                                                  strategy,
                                                  "--output",
                                                  output,
                                                  "--metrics",
                                                  metrics}) +
                                        ranks(world));
      ASSERT_EQ(run.status, 0) << run.err;
      expect_near(losses_of(metrics), expected);
      if (bytes.empty()) bytes = onnx_bytes::content(output);
      EXPECT_TRUE(onnx_bytes::content(output) == bytes) << "another strategy, other bits";
    }
  }
}

// Attention's rows are written in place, as in the plain graph.
TEST(FusedOperators, FuseAsThePlainGraph) {
  Words words = training("fused.onnx");
  words.insert(words.begin() + 1, "plan");
  const Finished run = Program::run(words + Words{"--verbose", "--schedule"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("attention_operands 2, attention_result 2"));
  EXPECT_THAT(run.out, HasSubstr("bias_gelu 1"));
  EXPECT_THAT(run.out, Not(HasSubstr("present.key")));
  EXPECT_THAT(run.out, Not(HasSubstr("com.microsoft.FusedMatMul")));
}

TEST(FusedOperators, APastWithAColumnIsRefused) {
  ModelFolder folder;
  for (const char* name : {"ids", "mask", "labels"}) {
    const std::string file = std::string(name) + ".npy";
    folder.write("past/" + file, onnx_bytes::content(fixture("fused/data/" + file)));
  }
  folder.write("past/past.key.npy",
               testing_data::npy("<f4", "(6, 1, 2, 16)", std::vector<float>(6 * 2 * 16)));
  const Words words = fsdp_run({fixture("fused/fused.onnx"), "--data", folder / "past", "--loss",
                                "cross_entropy", "--output", folder.output()});
  expect_refused(folder, words, {"input 'past.key'", "expected no column"});
}

// A model with one node of that operator, which reads x.
std::string model_of(const std::string& domain, const std::string& op) {
  using namespace onnx_bytes;
  const std::string node = message(1, "x") + message(1, "w") + message(2, "y") + message(3, "n") +
                           message(4, op) + message(7, domain);
  const auto type = [](const std::string& name) {
    const std::string batch = message(1, message(2, "batch")), width = message(1, number(1, 4));
    return message(1, name) + message(2, message(1, number(1, 1) + message(2, batch + width)));
  };
  const std::string weight =
      number(1, 4) + number(1, 4) + number(2, 1) + message(8, "w") + raw(std::vector<float>(16));
  const std::string graph = message(1, node) + message(2, "g") + message(5, weight) +
                            message(11, type("x")) + message(12, type("y"));
  return number(1, 8) + message(7, graph) + message(8, message(1, "") + number(2, 17)) +
         message(8, message(1, domain) + number(2, 1));
}

TEST(FusedOperators, LayoutsOfOneMachineAreRefused) {
  ModelFolder folder;
  folder.write("model.onnx", model_of("com.microsoft.nchwc", "Conv"));
  expect_refused(folder, {"com.microsoft.nchwc.Conv", "node: n", "level EXTENDED"});
  folder.write("model.onnx", model_of("com.microsoft", "PackedAttention"));
  expect_refused(folder, {"com.microsoft.PackedAttention", "node: n", "level EXTENDED"});
}

}  // namespace fused_operators_test
}  // namespace ofsdp
