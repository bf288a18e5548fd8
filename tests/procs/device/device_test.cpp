// The device path against the CPU path: the real program trains on a device in host memory that
// computes with the CPU's kernels and checks every call (tests/device/counting_device.h). Losses,
// norms, evaluations and trained files must equal the CPU's bit for bit, in any order of the
// streams. A longer run must not allocate or synchronize more.
#include <gtest/gtest.h>

#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/spoiled_data.h"

namespace ofsdp {
namespace device_test {

using testing_data::TempFolder;

Words of_sample(const char* model) {
  return fsdp_run({sample_model(model), "--steps", "3", "--batch-size", "2", "--eval-data", "none",
                   "--nproc-per-node", "1"});
}

std::vector<NamedRun> runs() {
  const Words mlp = small_mlp();
  return {{"plain", mlp},
          {"no_shard", mlp + Words{"--strategy", "no_shard"}},
          {"clip", mlp + Words{"--clip-grad-norm", "0.1", "--optimizer", "sgd", "--momentum", "0.9",
                               "--nesterov", "on"}},
          {"accumulate", mlp + Words{"--grad-accum", "3", "--optimizer", "adadelta"}},
          {"accumulate_whole",
           mlp + Words{"--grad-accum", "2", "--strategy", "zero1", "--clip-grad-norm", "0.5"}},
          {"decay", mlp + Words{"--no-decay", "auto", "--optimizer", "lion"}},
          {"lamb", mlp + Words{"--optimizer", "lamb", "--no-decay", "auto", "--grad-accum", "2"}},
          {"lamb_float16", mlp + Words{"--optimizer", "lamb", "--param-dtype", "float16"}},
          {"lamb_clip", mlp + Words{"--optimizer", "lamb", "--weight-decay", "0.1",
                                    "--clip-grad-norm", "0.1", "--strategy", "no_shard"}},
          {"bfloat16", mlp + Words{"--param-dtype", "bfloat16", "--reduce-dtype", "bfloat16"}},
          {"float16", mlp + Words{"--param-dtype", "float16", "--grad-accum", "2"}},
          {"recompute", of_sample("gpt/gpt.onnx") + Words{"--activation-checkpointing", "unit"}},
          {"gpt_bfloat16", of_sample("gpt/gpt.onnx") + Words{"--param-dtype", "bfloat16"}},
          {"bert", of_sample("bert/bert.onnx")},
          {"mnist", of_sample("mnist/mnist.onnx") + Words{"--data", "synthetic"}},
          {"dropout", fsdp_run({fixture("dropout/model.onnx"), "--loss", "cross_entropy", "--data",
                                "synthetic", "--steps", "9", "--batch-size", "5"})}};
}

class DeviceTest : public testing::TestWithParam<NamedRun> {};

INSTANTIATE_TEST_SUITE_P(Runs, DeviceTest, testing::ValuesIn(runs()), test_name);

TEST_P(DeviceTest, GivesTheBitsOfTheCpu) {
  expect_bits_of_the_cpu(GetParam().command, {"graph_launches"});
}

// More updates cost only copies, launches and waits for the update before.
TEST(DeviceCountTest, ALongerRunNeitherAllocatesNorSynchronizesMore) {
  const auto counts = [](const Words& more) {
    Trained run = on_counting_device(fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy",
                                               "--min-params", "1000", "--eval-data", "none"}) +
                                     more);
    EXPECT_EQ(run.run.status, 0) << run.run.err;
    EXPECT_EQ(run.violations, std::vector<std::string>{});
    return run.counts;
  };
  auto few = counts({"--steps", "12"});
  auto many = counts({"--steps", "112"});
  for (const char* name : {"allocations", "pinned_allocations", "bytes", "events_made", "releases",
                           "synchronizations", "captures", "captured_operations"}) {
    EXPECT_EQ(few[name], many[name]) << name;
  }
  EXPECT_EQ(many["kernels_made_late"], 0);
  EXPECT_EQ(many["graph_launches"] - few["graph_launches"], 100);
  // Each update awaits the upload, which leaves the upload stream empty, and the update before.
  EXPECT_EQ(many["awaits"] - few["awaits"], 200);
  EXPECT_EQ(many["awaits_that_leave_stream_0"], few["awaits_that_leave_stream_0"])
      << "the compute stream runs dry while the host waits";
  // Two columns, the numbers, the graph.
  EXPECT_EQ(many["operations"] - few["operations"], 400);
}

TEST(DeviceChoiceTest, OperatorsMayVaryFromRunToRunWhereThatIsAskedFor) {
  EXPECT_EQ(on_counting_device(small_mlp()).counts.at("may_vary"), 0);
  const Words off{"--deterministic", "off"};
  EXPECT_EQ(on_counting_device(small_mlp(), off).counts.at("may_vary"), 1);
}

TEST(DeviceChoiceTest, WithoutADriverAutoTakesTheCpuAndSaysSo) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE,
                          "COUNTING_DEVICE_PROBE=no NVIDIA driver"};
  const Trained chosen = train(small_mlp(), {}, environment);
  EXPECT_EQ(chosen.run.status, 0) << chosen.run.err;
  EXPECT_NE(chosen.run.out.find("device: the CPU, since no NVIDIA driver\n"), std::string::npos)
      << chosen.run.out;
  expect_same_bits(on_cpu(small_mlp()), chosen);
  const Trained demanded = train(small_mlp(), {"--device", "cuda"}, environment);
  EXPECT_EQ(demanded.run.status, 2);
  EXPECT_EQ(demanded.run.err, "fsdp-run: --device cuda: no NVIDIA driver\n");
}

TEST(DeviceChoiceTest, WithoutTheLibraryCudaIsRefusedInOneLine) {
  const Trained run = train(small_mlp(), {"--device", "cuda"}, {"OFSDP_CUDA_LIBRARY=/none.so"});
  EXPECT_EQ(run.run.status, 2);
  EXPECT_EQ(run.run.err,
            "fsdp-run: --device cuda: this build has no CUDA: see install.md of the documentation "
            "(no /none.so)\n");
}

TEST(DeviceChoiceTest, ALibraryOfAnotherBuildIsRefusedInOneLine) {
  for (const char* device : {"cuda", "auto"}) {
    const Trained run =
        train(small_mlp(), {"--device", device}, {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNT_ALLOCATIONS});
    EXPECT_EQ(run.run.status, 1) << run.run.err;
    EXPECT_NE(run.run.err.find("expected a library of this program's build"), std::string::npos);
    EXPECT_NE(run.run.err.find("found none"), std::string::npos) << run.run.err;
  }
}

TEST(DeviceChoiceTest, AnOperatorWithoutAKernelIsNamedOrLeftToTheCpu) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE,
                          "COUNTING_DEVICE_WITHOUT=Relu"};
  const Trained demanded = train(small_mlp(), {"--device", "cuda"}, environment);
  EXPECT_EQ(demanded.run.status, 2);
  EXPECT_NE(demanded.run.err.find("operator Relu has no CUDA kernel"), std::string::npos)
      << demanded.run.err;
  const Trained chosen = train(small_mlp(), {}, environment);
  EXPECT_NE(chosen.run.out.find("device: the CPU, since"), std::string::npos) << chosen.run.out;
  expect_same_bits(on_cpu(small_mlp()), chosen);
}

// The device has a kernel with that name, but it is not the plug-in's.
TEST(DeviceChoiceTest, AnOperatorThatAPlugInReplacesIsNotTheDevices) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE, "OFSDP_BAD_PLUGIN=built_in"};
  const Words command = small_mlp() + Words{"--plugin", OFSDP_BAD_PLUGIN, "--plugin-override"};
  const Trained demanded = train(command, {"--device", "cuda"}, environment);
  EXPECT_EQ(demanded.run.status, 2);
  EXPECT_NE(demanded.run.err.find("operator Relu of a plug-in has no CUDA kernel"),
            std::string::npos)
      << demanded.run.err;
}

TEST(DeviceFaultTest, ALossThatIsNanNamesTheNodeAndUpdatesNothing) {
  const Words command = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--lr",
                                  "1e38", "--optimizer", "sgd", "--steps", "50"});
  const Trained cpu = on_cpu(command), device = on_counting_device(command);
  EXPECT_EQ(cpu.run.status, 1);
  EXPECT_EQ(device.run.status, 1);
  EXPECT_NE(cpu.run.err.find("NaN"), std::string::npos);
  EXPECT_EQ(cpu.run.err, device.run.err);
}

class DeviceData : public testing::TestWithParam<Spoiled> {};

INSTANTIATE_TEST_SUITE_P(Files, DeviceData, testing::ValuesIn(spoiled_data()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceData, OutOfRangeEndTheRunWithTheLineOfTheCpu) {
  for (const Words& more :
       {Words{}, Words{"--grad-accum", "2"}, Words{"--param-dtype", "bfloat16"}}) {
    const TempFolder folder;
    const Words command = train_spoiled(folder, GetParam()) + more;
    const Finished cpu = Program::run(command + Words{"--device", "cpu"});
    const Finished device =
        Program::run(command + Words{"--device", "cuda"},
                     {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE}});
    EXPECT_EQ(cpu.status, 2);
    EXPECT_EQ(device.status, 2);
    EXPECT_NE(cpu.err.find(std::to_string(GetParam().value)), std::string::npos) << cpu.err;
    EXPECT_EQ(cpu.err, device.err);
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out.onnx"));
  }
}

TEST(DeviceDataTest, OutOfRangeEndAnEvaluation) {
  const TempFolder folder;
  const Words command =
      train_spoiled(folder, spoiled_data()[0]) +
      Words{"--data", fixture("bert_tiny/data"), "--eval-data", folder.path() + "/data"};
  const Finished cpu = Program::run(command + Words{"--device", "cpu"});
  const Finished device =
      Program::run(command + Words{"--device", "cuda"},
                   {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE}});
  EXPECT_EQ(device.status, 2);
  EXPECT_NE(cpu.err.find("found 30000"), std::string::npos) << cpu.err;
  EXPECT_EQ(cpu.err, device.err);
}

TEST(DeviceCheckpointTest, GoesOnFromWhatTheCpuSavedAndTheOtherWayRound) {
  expect_checkpoints_of_both(small_mlp() + Words{"--param-dtype", "float16"}, 9, 17);
}

}  // namespace device_test
}  // namespace ofsdp
