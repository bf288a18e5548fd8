// --deterministic across_ranks on devices: the trained file equals the CPU's and one rank's, byte
// for byte. Holds for any number of ranks, any strategy and any order of the streams. Metrics equal
// a run of as many ranks on the CPU.
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace device_same_bits_test {

// Global batches that no number of ranks divides, and a short last one.
Words mlp() {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                   "--global-batch-size", "21", "--steps", "12", "--eval-data", "none"});
}

std::vector<NamedRun> runs() {
  const Words dropout =
      fsdp_run({fixture("dropout/model.onnx"), "--loss", "cross_entropy", "--data", "synthetic",
                "--steps", "4", "--global-batch-size", "10", "--eval-data", "none"});
  const Words statistics = fsdp_run({OFSDP_SOURCE_DIR "/tests/oracle/cases/residual/legacy.onnx",
                                     "--loss", "cross_entropy", "--data", "synthetic", "--steps",
                                     "3", "--global-batch-size", "22", "--eval-data", "none"});
  return {{"mlp", mlp()},
          {"slices", mlp() + Words{"--batch-size", "4"}},
          {"bfloat16", mlp() + Words{"--param-dtype", "bfloat16"}},
          {"rounded", mlp() + Words{"--param-dtype", "bfloat16", "--reduce-dtype", "bfloat16",
                                    "--optimizer", "lion"}},
          {"clip", mlp() + Words{"--clip-grad-norm", "0.1"}},
          {"float16", mlp() + Words{"--param-dtype", "float16", "--reduce-dtype", "bfloat16"}},
          {"dropout", dropout},
          {"statistics", statistics}};
}

Words on_ranks(int world, const std::string& strategy) {
  return ranks(world) + Words{"--strategy", strategy, "--deterministic", "across_ranks"};
}

class DeviceSameBitsTest : public testing::TestWithParam<NamedRun> {};

INSTANTIATE_TEST_SUITE_P(Runs, DeviceSameBitsTest, testing::ValuesIn(runs()), test_name);

TEST_P(DeviceSameBitsTest, NoNumberOfRanksAndNoStrategyChangesABit) {
  const Trained alone = on_cpu(GetParam().command + on_ranks(1, "full_shard"));
  const auto agrees = [&](const Words& how, const Words& more, int seed) {
    SCOPED_TRACE(testing::PrintToString(how + more));
    const Trained device = on_counting_device(GetParam().command + how, more, seed);
    expect_same_bits(on_cpu(GetParam().command + how), device);
    EXPECT_TRUE(alone.file == device.file);
  };
  agrees(on_ranks(1, "full_shard"), {}, 1);
  agrees(on_ranks(2, "full_shard"), {}, 1);
  agrees(on_ranks(3, "full_shard"), {}, 2);
  agrees(on_ranks(2, "no_shard"), {}, 2);
  agrees(on_ranks(3, "zero1"), {}, 1);
  agrees(on_ranks(4, "hybrid_shard") + Words{"--shard-size", "2"}, {}, 1);
  agrees(on_ranks(2, "shard_grad_op"), {"--cuda-graph", "off"}, 1);
}

TEST(DeviceSameBitsChoiceTest, WhatNeedsExactNormsOfParametersIsRefusedOrLeftToTheCpu) {
  const Words command = mlp() + on_ranks(2, "full_shard") + Words{"--optimizer", "lamb"};
  const Trained demanded = on_counting_device(command);
  EXPECT_EQ(demanded.run.status, 2);
  expect_one_line(demanded.run.err,
                  {"--device cuda: --deterministic across_ranks with --optimizer lamb"});
  const Trained chosen = train(command, {}, {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE});
  EXPECT_NE(chosen.run.out.find("device: the CPU, since --deterministic across_ranks with"),
            std::string::npos)
      << chosen.run.out;
}

// The CUDA library's operators: the same file on 1, 2 and 3 ranks, different from the CPU's.
TEST(DeviceSameBitsOperatorsTest, TheCudaKernelsGiveTheSameBitsOnAnyNumberOfRanks) {
  const Words command = fsdp_run({fixture("gpt2_tiny/model.onnx"), "--loss", "cross_entropy",
                                  "--data", "synthetic", "--eval-data", "none",
                                  "--global-batch-size", "5", "--batch-size", "1", "--steps", "2"});
  const Trained one = run_on_device(OFSDP_EMULATED_DEVICE, command + on_ranks(1, "full_shard"));
  expect_both_ran(one, one);
  for (const int world : {2, 3}) {
    const Trained several =
        run_on_device(OFSDP_EMULATED_DEVICE, command + on_ranks(world, "full_shard"));
    expect_both_ran(one, several);
    EXPECT_TRUE(one.file == several.file) << world;
  }
}

}  // namespace device_same_bits_test
}  // namespace ofsdp
