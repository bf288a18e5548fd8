// Frozen weights in the file's type (tests/oracle/make_few_bits.py): the losses of PyTorch, and the
// same bits under every strategy. Memory is as planned to the byte, without a float copy of a
// weight. The trained file keeps the bytes of frozen weights.
#include <fstream>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/device_runs.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace few_bits_test {

using namespace onnx_bytes;  // NOLINT: the words of this test

std::string parent_folder(const std::string& name) { return fixture("few_bits/" + name); }

Words train(const std::string& name, const Words& more = {}) {
  const std::string folder = parent_folder(name);
  const Words frozen = name == "nbits" || name == "tied" ? Words{} : Words{"--freeze", "w*"};
  return fsdp_run({folder + "/model.onnx",
                   "--data",
                   folder + "/data",
                   "--loss",
                   "cross_entropy",
                   "--optimizer",
                   "sgd",
                   "--lr",
                   "0.2",
                   "--momentum",
                   "0.9",
                   "--no-shuffle",
                   "--device",
                   "cpu",
                   "--global-batch-size",
                   "8",
                   "--steps",
                   "6",
                   "--epochs",
                   "9"}) +
         frozen + more;
}

std::vector<nlohmann::json> rows_of_run(const Words& words) {
  const Folder folder;
  const Finished run = Program::run(words + Words{"--metrics", folder / "m.jsonl"});
  EXPECT_EQ(run.status, 0) << run.err;
  return rows_of(folder / "m.jsonl");
}

class FewBitsTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Files, FewBitsTest, testing::Values("nbits", "frozen", "half", "tied"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FewBitsTest, LossesAreThoseOfPyTorchInThePlannedMemory) {
  std::vector<double> expected;
  std::ifstream lines(parent_folder(GetParam()) + "/losses.txt");
  for (double loss = 0; lines >> loss;) expected.push_back(loss);
  ASSERT_EQ(expected.size(), 6u);
  for (const int world : {1, 2}) {
    for (const char* strategy : {"full_shard", "no_shard"}) {
      SCOPED_TRACE(format_text("{} ranks, {}", world, strategy));
      const auto rows =
          rows_of_run(train(GetParam(), ranks(world) + Words{"--strategy", strategy}));
      ASSERT_EQ(rows.size(), expected.size() + 1);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(rows[i].at("loss").get<double>(), expected[i], 1e-5 * expected[i]) << i;
      }
      EXPECT_EQ(rows.back().at("peak_bytes"), rows.back().at("planned_peak_bytes"));
    }
  }
}

TEST_P(FewBitsTest, SameBitsUnderEveryStrategyAndOtherBytesUnchanged) {
  const CheckpointRuns runs;
  const Words words = train(GetParam(), ranks(2) + Words{"--clip-grad-norm", "0.5"});
  const std::string expected = runs.trained(words);
  for (const char* strategy : {"shard_grad_op", "zero1", "no_shard"}) {
    EXPECT_TRUE(runs.trained(words + Words{"--strategy", strategy}) == expected) << strategy;
  }
  const std::string before = content(parent_folder(GetParam()) + "/model.onnx");
  ASSERT_EQ(before.size(), expected.size());
  size_t changed = 0;
  for (size_t i = 0; i < before.size(); ++i) changed += before[i] != expected[i] ? 1 : 0;
  EXPECT_GT(changed, 0u);
  EXPECT_LE(changed, 1100u) << "biases, and a small matrix of one file";
}

TEST_P(FewBitsTest, DevicesGiveTheLossesOfTheCpu) {
  Words words = train(GetParam());
  std::erase(words, "--device");
  std::erase(words, "cpu");
  for (const Words& more : {Words{}, Words{"--strategy", "full_shard"} + ranks(2),
                            Words{"--param-dtype", "bfloat16"}}) {
    SCOPED_TRACE(testing::PrintToString(more));
    const Trained cpu = on_cpu(words + more);
    expect_near_losses(cpu, run_on_device(OFSDP_EMULATED_DEVICE, words + more),
                       more.empty() ? 2e-5 : 1e-2);
    // Only on the CPU do weights outside MatMulNBits keep the file's type.
    const bool packed = GetParam() == std::string("nbits") || GetParam() == std::string("tied");
    if (packed) {
      expect_same_bits(cpu, on_counting_device(words + more));
    }
  }
}

// Weights: 160 x 192 in 4 bits, 64 x 192 and 5 x 64 in 8: 27968 bytes; scales: 4100.
TEST(FewBitsMemoryTest, FrozenWeightsTakeTheBytesOfTheFile) {
  for (const Words& more : {Words{}, Words{"--param-dtype", "bfloat16"}}) {
    Words plan = train("frozen", more + Words{"--strategy", "no_shard", "--verbose"});
    plan.insert(plan.begin() + 1, "plan");
    const Finished run = Program::run(plan);
    ASSERT_EQ(run.status, 0) << run.err;
    const std::string row = "constants and frozen parameters";
    const size_t at = run.out.find(row);
    ASSERT_NE(at, std::string::npos);
    const std::string line = run.out.substr(at, run.out.find('\n', at) - at);
    const int bytes = std::stoi(line.substr(line.rfind(' ')));
    EXPECT_GE(bytes, 27968 + 4100);
    EXPECT_LE(bytes, 27968 + 4100 + 1000) << "padding, a zero point, factors";
  }
}

TEST(FewBitsAdaptersTest, TrainOverFewBitsAndAreNotMerged) {
  const Folder folder;
  const Words tuned = train("nbits", ranks(2) + Words{"--lora", "*_Q*", "--lora-rank", "2"});
  const std::string adapter = folder / "a.safetensors";
  const auto bytes_of = [&](const Words& more) {
    const Finished run = Program::run(tuned + Words{"--adapter", adapter} + more);
    EXPECT_EQ(run.status, 0) << run.err;
    return content(adapter);
  };
  const std::string expected = bytes_of({});
  EXPECT_NE(expected.find("base_model.model.up.lora_A"), std::string::npos);
  EXPECT_TRUE(bytes_of({"--strategy", "no_shard"}) == expected);
  const Finished refused = Program::run(tuned + Words{"--output", folder / "merged.onnx"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("--adapter"), std::string::npos) << refused.err;
}

// A file that is its own teacher: half of the cross entropy stays, and there is no divergence. The
// packed bytes lie elsewhere in the trained file.
TEST(FewBitsTeacherTest, IsReadFromItsOwnFile) {
  for (const char* name : {"nbits", "tied"}) {
    const Folder folder;
    const std::string teacher = parent_folder(name) + "/model.onnx";
    folder.write("model.onnx", message(6, std::string(5000, 'd')) + content(teacher));
    for (const int world : {1, 2}) {
      SCOPED_TRACE(format_text("{}, {} ranks", name, world));
      Words words = train(name, ranks(world));
      words[1] = folder / "model.onnx";
      const double plain = rows_of_run(words)[0].at("loss");
      const double taught = rows_of_run(words + Words{"--teacher", teacher})[0].at("loss");
      EXPECT_NEAR(taught, plain / 2, 1e-6 * plain);
    }
  }
}

// A file that keeps its integers gets a head: its other bytes stay.
TEST(FewBitsEditsTest, AHeadLeavesTheIntegersAsTheyAre) {
  for (const char* name : {"nbits", "tied", "frozen"}) {
    SCOPED_TRACE(name);
    const Folder folder;
    const std::string to = folder / "out.onnx";
    const std::string from = parent_folder(name) + "/model.onnx";
    const Finished run =
        Program::run(train(name, {"--add-head", "5", "--untie", "*", "--output", to}));
    ASSERT_EQ(run.status, 0) << run.err;
    const auto before = OnnxFile::open(from), after = OnnxFile::open(to);
    ASSERT_TRUE(before.ok() && after.ok());
    size_t compared = 0;
    for (const Initializer& weight : before->initializers()) {
      if (!weight.own_type && weight.quantization == nullptr) continue;
      const auto& all = after->initializers();
      const auto same = std::ranges::find(all, weight.name, &Initializer::name);
      ASSERT_NE(same, all.end()) << weight.name;
      std::vector<std::byte> bytes[2];
      for (auto& one : bytes) one.resize(static_cast<size_t>(weight.raw_bytes()));
      ASSERT_TRUE(before->read_raw(weight, 0, bytes[0]).ok());
      ASSERT_TRUE(after->read_raw(*same, 0, bytes[1]).ok());
      EXPECT_EQ(bytes[0], bytes[1]) << weight.name;
      ++compared;
    }
    EXPECT_GT(compared, 0u);
  }
}

}  // namespace few_bits_test
}  // namespace ofsdp
