// Operators of plug-ins on a device: the functions for CUDA in tests/plugins/device_plugin.cpp,
// which put their work onto a stream of the counting device. Losses, norms and trained files
// must equal the plug-in's CPU kernels bit for bit, captured or launched, in any order of the
// streams.
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace device_plugin_test {

std::string model_of(const std::string& name) { return fixture("plugins/" + name + "/model.onnx"); }

Words with_plugin(const std::string& name, int world = 1) {
  return fsdp_run({model_of(name), "--plugin", OFSDP_DEVICE_PLUGIN, "--loss", "cross_entropy",
                   "--global-batch-size", "12", "--steps", "5", "--min-params", "100",
                   "--eval-data", "none"}) +
         ranks(world);
}

std::vector<NamedRun> runs() {
  const Words all = with_plugin("all");
  return {{"rms_norm", with_plugin("rms_norm")},
          {"scaled_tanh", with_plugin("scaled_tanh")},
          {"all", all},
          {"recompute", all + Words{"--activation-checkpointing", "unit"}},
          {"accumulate", all + Words{"--batch-size", "4", "--clip-grad-norm", "0.1"}},
          {"bfloat16", all + Words{"--param-dtype", "bfloat16"}},
          {"offload", all + Words{"--cpu-offload", "params"}},
          {"two_ranks", with_plugin("all", 2)},
          {"two_ranks_whole", with_plugin("all", 2) + Words{"--strategy", "no_shard"}},
          {"three_ranks", with_plugin("all", 3) +
                              Words{"--activation-checkpointing", "unit", "--batch-size", "2"}}};
}

class DevicePluginTest : public testing::TestWithParam<NamedRun> {};

INSTANTIATE_TEST_SUITE_P(Runs, DevicePluginTest, testing::ValuesIn(runs()), test_name);

TEST_P(DevicePluginTest, GivesTheBitsOfTheCpu) {
  expect_bits_of_the_cpu(GetParam().command, {"graph_launches", "native_launches"});
}

// A program calls a plug-in in the first run and in both captures.
TEST(DevicePluginCountTest, ACapturedStepIsReplayedWithoutACall) {
  const auto calls = [](const char* steps) {
    return on_counting_device(with_plugin("all"), {"--steps", steps}).counts["native_launches"];
  };
  const long nodes = 3 * 2 + 3 * 2 + 3;  // three blocks; the gradient of SwiGlu is known operators
  EXPECT_EQ(calls("10"), 3 * nodes);
  EXPECT_EQ(calls("50"), 3 * nodes);
}

TEST(DevicePluginFaultTest, AFunctionThatIsMissingIsNamedOrLeftToTheCpu) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE,
                          "OFSDP_DEVICE_PLUGIN=no_backward"};
  const Words command = with_plugin("scaled_tanh");
  const Trained demanded = train(command, {"--device", "cuda"}, environment);
  EXPECT_EQ(demanded.run.status, 2);
  expect_one_line(demanded.run.err,
                  {"model.onnx", "blocks.0.tanh",
                   "ofsdp.backward.com.example.ScaledTanh of a plug-in has no CUDA kernel"});
  const Trained chosen = train(command, {}, environment);
  EXPECT_NE(chosen.run.out.find("device: the CPU, since"), std::string::npos) << chosen.run.out;
  expect_same_bits(on_cpu(command), chosen);
}

// In a captured step, and in a launched one: one line with the node and the step.
TEST(DevicePluginFaultTest, WhatAPlugInSaysEndsTheRun) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE, "OFSDP_DEVICE_PLUGIN=fails"};
  for (const char* graph : {"on", "off"}) {
    for (const int world : {1, 2}) {
      const Trained run = train(with_plugin("scaled_tanh", world),
                                {"--device", "cuda", "--cuda-graph", graph}, environment);
      EXPECT_EQ(run.run.status, 1);
      expect_one_line(run.run.err,
                      {"model.onnx", "node 'blocks.0.tanh' (com.example.ScaledTanh), step 2, rank ",
                       "the plug-in's cuda_forward failed: the stream is full"});
      EXPECT_TRUE(run.file.empty());
    }
  }
}

}  // namespace device_plugin_test
}  // namespace ofsdp
