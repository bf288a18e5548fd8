// Several ranks on GPUs of this host, joined by NCCL: the real program with two ranks against the
// same ranks on the CPU, twice, with and without a captured step, and with one killed rank. Skipped
// if `--device cuda` cannot have two ranks, with the reason. One GPU is enough with NCCL 2.30
// (OFSDP_NCCL_LIBRARY may name it) and NCCL_MULTI_RANK_GPU_ENABLE=1.
#include <gtest/gtest.h>
#include <signal.h>

#include "kernels/core/device.h"
#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace {

struct TrainingRun {
  Finished finished;
  std::vector<double> losses;
};

// Program drops OFSDP_ variables; this run needs the two that name libraries.
Start with_libraries(double patience) {
  Start start;
  start.patience = patience;
  for (const char* name : {"OFSDP_CUDA_LIBRARY", "OFSDP_NCCL_LIBRARY"}) {
    const char* value = std::getenv(name);
    if (value != nullptr) start.environment.push_back(std::string(name) + "=" + value);
  }
  return start;
}

TrainingRun train(const Words& command, const Words& more) {
  const testing_data::TempFolder folder;
  const std::string metrics = folder.path() + "/metrics";
  TrainingRun run{Program::run(command + more + Words{"--metrics", metrics, "--timeout", "60"},
                               with_libraries(240)),
                  {}};
  run.losses = losses_of(metrics);
  return run;
}

Words mlp_on(int world) {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                   "--steps", "12", "--batch-size", "7", "--eval-data", "none"}) +
         ranks(world);
}

class RanksOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!count_devices().ok()) GTEST_SKIP() << count_devices().error().message();
    const TrainingRun probe = train(mlp_on(2), {"--device", "cuda", "--steps", "1"});
    if (probe.finished.status == 2) GTEST_SKIP() << probe.finished.err;
    ASSERT_EQ(probe.finished.status, 0) << probe.finished.err;
  }
};

class StrategiesOnGpus : public RanksOnGpus, public testing::WithParamInterface<Words> {};

INSTANTIATE_TEST_SUITE_P(
    Runs, StrategiesOnGpus,
    testing::Values(Words{}, Words{"--strategy", "shard_grad_op"}, Words{"--strategy", "no_shard"},
                    Words{"--strategy", "zero1", "--grad-accum", "2", "--clip-grad-norm", "0.1"},
                    Words{"--param-dtype", "bfloat16"}, Words{"--param-dtype", "float16"}));

TEST_P(StrategiesOnGpus, GiveTheLossesOfTheCpuAndTheSameTwice) {
  const Words command = mlp_on(2) + GetParam();
  const TrainingRun cpu = train(command, {"--device", "cpu"});
  const TrainingRun captured = train(command, {"--device", "cuda"});
  const TrainingRun launched = train(command, {"--device", "cuda", "--cuda-graph", "off"});
  ASSERT_EQ(captured.finished.status, 0) << captured.finished.err;
  ASSERT_EQ(cpu.losses.size(), captured.losses.size());
  const bool narrow = !GetParam().empty() && GetParam()[0] == "--param-dtype";
  for (size_t i = 0; i < cpu.losses.size(); ++i) {
    EXPECT_NEAR(captured.losses[i], cpu.losses[i], (narrow ? 5e-3 : 5e-5) * cpu.losses[i]) << i;
  }
  EXPECT_EQ(captured.losses, launched.losses);
  EXPECT_EQ(captured.losses, train(command, {"--device", "cuda"}).losses);
}

TEST_F(RanksOnGpus, ARankThatIsKilledEndsTheOthers) {
  Program program(fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--epochs",
                            "1000000", "--eval-data", "none", "--log-interval", "1", "--device",
                            "cuda", "--timeout", "60"}) +
                      ranks(2),
                  with_libraries(120));
  ASSERT_TRUE(program.until_output("step 9/", 60)) << program.err();
  kill(children_of(program.pid()).at(1), SIGKILL);
  const Finished finished = program.wait(30);
  EXPECT_EQ(finished.status, 1);
  EXPECT_NE(finished.err.find("died while rank"), std::string::npos) << finished.err;
}

}  // namespace
}  // namespace ofsdp
