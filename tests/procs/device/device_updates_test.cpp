// Rates and optimizers for groups (--group) and averaged parameters (--ema) on devices: on the
// counting device with the CPU's bits, in any order of the streams, captured or not; with the CUDA
// library's kernels, the CPU's losses.
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace device_updates_test {

// Evaluations in between: they take the average, and the run goes on without it.
Words mlp(const Words& more) {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                   "--global-batch-size", "12", "--steps", "12", "--epochs", "100", "--eval-data",
                   fixture("mlp/data"), "--eval-interval", "5step", "--lr-schedule", "cosine",
                   "--warmup-steps", "3"}) +
         more;
}

const Words kRates = {"--group", "*bias:lr=0.1x,weight_decay=0", "--group", "head*:lr=0.02"};
const Words kKinds = {"--group", "fc1.weight:optimizer=adafactor,lr=0.01",
                      "--group", "fc2.weight:optimizer=muon,lr=0.02",
                      "--group", "*bias:optimizer=lamb"};
const Words kAverage = {"--ema", "0.7"};

std::vector<NamedRun> runs() {
  const Words half = {"--param-dtype", "float16"};
  return {{"rates", mlp(kRates)},
          {"kinds", mlp(kKinds)},
          {"kinds_on_3_ranks", mlp(kKinds + kAverage + ranks(3))},
          {"average", mlp(kAverage)},
          {"average_of_steps", mlp(kAverage + Words{"--optimizer", "lamb"} + ranks(2))},
          {"all_on_2_ranks", mlp(kRates + kAverage + Words{"--grad-accum", "2"} + ranks(2))},
          {"bfloat16", mlp(kRates + kAverage + Words{"--param-dtype", "bfloat16"} + ranks(2))},
          {"float16", mlp(kRates + kAverage + half)},
          {"unused_average", mlp(kAverage + Words{"--ema-use", "off"})},
          {"offload_optimizer", mlp(kRates + kAverage + Words{"--cpu-offload", "optimizer"})},
          {"offload_params", mlp(kRates + kAverage + Words{"--cpu-offload", "params"} + ranks(2))}};
}

class DeviceUpdatesTest : public testing::TestWithParam<NamedRun> {};

INSTANTIATE_TEST_SUITE_P(Runs, DeviceUpdatesTest, testing::ValuesIn(runs()), test_name);

TEST_P(DeviceUpdatesTest, GivesTheBitsOfTheCpu) { expect_bits_of_the_cpu(GetParam().command); }

TEST_P(DeviceUpdatesTest, CudaKernelsGiveTheLossesOfTheCpu) {
  expect_near_losses(on_cpu(GetParam().command),
                     run_on_device(OFSDP_EMULATED_DEVICE, GetParam().command), 1e-3);
}

TEST(DeviceUpdatesResumeTest, CheckpointsWithAnAverageCross) {
  // A schedule over --steps would differ between the halves and the whole.
  const Words constant = {"--lr-schedule", "constant", "--warmup-steps", "0"};
  expect_checkpoints_of_both(mlp(kRates + kAverage + constant + ranks(2)), 7, 12);
}

}  // namespace device_updates_test
}  // namespace ofsdp
