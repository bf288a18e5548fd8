// The CUDA kernels without a GPU: the real program trains with the operators of kernels/cuda on
// the CUDA of tests/emulator (tests/device/emulated). Losses must equal the CPU's within 5e-5,
// and every node in these models must have a kernel: a node without one ends the run and is
// named.
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/spoiled_data.h"

namespace ofsdp {
namespace emulated_device_test {

struct Case {
  const char* name;
  Words command;
  std::vector<std::string> operators;  // some that the model must request from the device
};

Words with_loss(const std::string& model) {
  return fsdp_run({model, "--loss", "cross_entropy", "--data", "synthetic", "--eval-data", "none",
                   "--nproc-per-node", "1", "--batch-size", "2"});
}

Words of_sample(const char* model, const char* batch) {
  return fsdp_run({sample_model(model), "--batch-size", batch, "--eval-data", "none",
                   "--nproc-per-node", "1", "--data", "synthetic"});
}

std::vector<Case> cases() {
  const Words mlp =
      fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                "--eval-data", fixture("mlp/data"), "--nproc-per-node", "1", "--steps", "20"});
  const Words gpt = with_loss(fixture("gpt2_tiny/model.onnx")), two{"--steps", "2"};
  const Words bfloat16{"--param-dtype", "bfloat16"};
  return {{"mlp", mlp, {"Gemm", "ofsdp.ReluGrad", "ofsdp.ArgmaxMatches"}},
          {"mlp_bfloat16", mlp + bfloat16, {"Cast", "ofsdp.SoftmaxCrossEntropyLossWithGradient"}},
          {"mlp_lamb", mlp + Words{"--optimizer", "lamb"}, {"Gemm"}},
          {"dropout",
           fsdp_run({fixture("dropout/model.onnx"), "--loss", "cross_entropy", "--data",
                     "synthetic", "--steps", "9", "--batch-size", "5"}),
           {"Dropout", "ofsdp.DropoutGrad"}},
          {"mnist_cnn",
           of_sample("mnist/mnist.onnx", "2") + two,
           {"Conv", "ofsdp.ConvGradInput", "ofsdp.ConvGradWeights", "ofsdp.MaxPoolGrad",
            "ofsdp.Reorder"}},
          {"gpt2_tiny",
           gpt + two,
           {"ofsdp.AttentionWithStatistics", "ofsdp.AttentionGrad", "GatherND", "ofsdp.GatherGrad",
            "LayerNormalization"}},
          {"gpt2_tiny_recomputed",
           gpt + two + Words{"--activation-checkpointing", "unit"},
           {"Attention", "ofsdp.AttentionWithStatistics"}},
          {"gpt2_tiny_bfloat16",
           gpt + two + bfloat16,
           {"ofsdp.AttentionWithStatistics", "ofsdp.GemmEpilogue"}},
          {"images",
           with_loss(fixture("variety/images.onnx")) + two,
           {"ofsdp.PadGrad", "ofsdp.GroupNormalizationGrad", "ofsdp.LRNGrad", "ConvTranspose",
            "InstanceNormalization", "ofsdp.ResizeGrad", "MeanVarianceNormalization",
            "ReduceLogSumExp", "LpNormalization"}},
          {"images_bfloat16", with_loss(fixture("variety/images.onnx")) + two + bfloat16, {}},
          {"sequences",
           with_loss(fixture("variety/sequences.onnx")) + two,
           {"ofsdp.LSTMGrad", "ofsdp.GRUGrad", "ofsdp.RNNGrad", "Einsum", "Trilu", "TopK",
            "GatherElements", "ScatterElements", "ScatterND", "ofsdp.ReduceProdGrad"}},
          {"masks",
           with_loss(fixture("variety/masks.onnx")) + two,
           {"ofsdp.FoundIndices", "ofsdp.ScatterIndices", "RandomNormalLike"}},
          {"bert_tiny_bfloat16",
           with_loss(fixture("bert_tiny/model.onnx")) + two + bfloat16,
           {"ofsdp.AttentionWithStatistics", "ofsdp.AttentionGrad"}},
          {"bert_tiny",
           with_loss(fixture("bert_tiny/model.onnx")) + two,
           {"LayerNormalization", "ofsdp.LayerNormalizationGrad", "Where", "ofsdp.GeluGrad",
            "ofsdp.GemmEpilogue"}}};
}

class EmulatedDevice : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Models, EmulatedDevice, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// The operators that the run's programs requested from the device.
std::vector<std::string> operators_of(const Trained& run) {
  std::vector<std::string> names;
  for (const auto& [name, count] : run.counts) {
    if (name.starts_with("kernel:")) names.push_back(name.substr(7));
  }
  return names;
}

TEST_P(EmulatedDevice, HasAKernelForEveryNodeAndGivesTheLossesOfTheCpu) {
  const Trained cpu = on_cpu(GetParam().command);
  const Trained device = run_on_device(OFSDP_EMULATED_DEVICE, GetParam().command);
  const std::vector<std::string> operators = operators_of(device);
  for (const std::string& wanted : GetParam().operators) {
    EXPECT_NE(std::ranges::find(operators, wanted), operators.end()) << wanted;
  }
  // 16-bit products are rounded where sums are in another order.
  const bool narrow = std::string(GetParam().name).ends_with("bfloat16");
  expect_near_losses(cpu, device, narrow ? 5e-3 : 5e-5);
}

// bench/roofline.py reads them.
TEST(EmulatedDeviceLaunches, AreCountedByOperator) {
  const Trained run = run_on_device(
      OFSDP_EMULATED_DEVICE, with_loss(fixture("bert_tiny/model.onnx")) + Words{"--steps", "1"});
  ASSERT_EQ(run.run.status, 0) << run.run.err;
  long runs = 0, launches = 0;
  for (const auto& [name, count] : run.counts) {
    if (!name.starts_with("runs:")) continue;
    const long launched = run.counts.at("launches:" + name.substr(5));
    EXPECT_GE(launched, count) << name;
    runs += count;
    launches += launched;
  }
  EXPECT_EQ(run.counts.at("launches:ofsdp.GemmEpilogue"), run.counts.at("runs:ofsdp.GemmEpilogue"));
  EXPECT_GT(launches, runs) << "a gradient of a norm takes rows, then sums of its parameters";
}

TEST(EmulatedDeviceData, OutOfRangeEndTheRunWithTheLineOfTheCpu) {
  for (const Spoiled& spoiled : spoiled_data()) {
    const testing_data::TempFolder folder;
    const Words command = train_spoiled(folder, spoiled) + Words{"--nproc-per-node", "1"};
    const Finished cpu = Program::run(command + Words{"--device", "cpu"});
    const Finished device =
        Program::run(command + Words{"--device", "cuda"},
                     {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_EMULATED_DEVICE}});
    EXPECT_EQ(device.status, 2);
    EXPECT_EQ(cpu.err, device.err) << spoiled.name;
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out.onnx"));
  }
}

// TF32 has ten bits of fraction: losses move by no more than the rounding; in 16 bits no loss
// moves.
TEST(EmulatedDevicePrecision, HighRoundsOperandsOfFloat32Products) {
  const Words high{"--matmul-precision", "high"};
  const Words mlp = small_mlp(1) + Words{"--steps", "9"};
  const Trained exact = run_on_device(OFSDP_EMULATED_DEVICE, mlp);
  const Trained rounded = run_on_device(OFSDP_EMULATED_DEVICE, mlp, high);
  expect_near_losses(exact, rounded, 2e-3);
  EXPECT_NE(exact.rows, rounded.rows);
  EXPECT_NE(rounded.run.out.find("loss float32; products of float32 in TF32"), std::string::npos);
  const Words narrow{"--param-dtype", "bfloat16"};
  expect_same_bits(run_on_device(OFSDP_EMULATED_DEVICE, mlp, narrow),
                   run_on_device(OFSDP_EMULATED_DEVICE, mlp, narrow + high));
}

TEST(EmulatedDevicePrecision, HasNoEffectOnTheCpuWhichOneLineSays) {
  const Words mlp = small_mlp(1) + Words{"--steps", "3"};
  const Trained plain = on_cpu(mlp), high = on_cpu(mlp + Words{"--matmul-precision", "high"});
  expect_same_bits(plain, high);
  EXPECT_NE(high.run.out.find("--matmul-precision high: no effect, since the run is on the CPU\n"),
            std::string::npos);
}

TEST(EmulatedDeviceBits, AreTheSameWhereTheLossIsApartFromItsGradient) {
  const std::string joined = "ofsdp.SoftmaxCrossEntropyLossWithGradient";
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const Words command = small_mlp(1) + Words{"--steps", "9", "--param-dtype", dtype};
    const Trained one = run_on_device(OFSDP_EMULATED_DEVICE, command);
    const Trained two =
        train(command, {"--device", "cuda"},
              {"OFSDP_CUDA_LIBRARY=" OFSDP_EMULATED_DEVICE, "COUNTING_DEVICE_WITHOUT=" + joined});
    EXPECT_TRUE(one.counts.contains("kernel:" + joined));
    EXPECT_FALSE(two.counts.contains("kernel:" + joined));
    expect_same_bits(two, one);
  }
}

TEST(EmulatedDeviceBits, AreTheSameTwiceWithAndWithoutAGraph) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const Words command =
        with_loss(fixture("gpt2_tiny/model.onnx")) + Words{"--steps", "3", "--param-dtype", dtype};
    const Trained first = run_on_device(OFSDP_EMULATED_DEVICE, command);
    const Trained again =
        run_on_device(OFSDP_EMULATED_DEVICE, command, {"--cuda-graph", "off"}, /*seed=*/2);
    ASSERT_EQ(first.run.status, 0) << first.run.err;
    EXPECT_EQ(first.rows, again.rows);
    EXPECT_TRUE(first.file == again.file) << "the trained files differ";
  }
}

}  // namespace emulated_device_test
}  // namespace ofsdp
