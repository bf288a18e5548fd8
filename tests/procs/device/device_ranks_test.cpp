// Several ranks on devices: the real program trains with a device a rank, each in host memory
// (tests/device/counting_device.h). Collectives meet in shared memory and sum in rank order.
// Losses, norms, evaluations and trained files must equal the same ranks' on the CPU, bit for
// bit, in any order of the streams. A rank that dies, hangs or sees a NaN ends all, in one
// line.
#include <signal.h>

#include "tests/support/device_runs.h"
#include "tests/support/mnist_images.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"
#include "tests/support/spoiled_data.h"

namespace ofsdp {
namespace device_ranks_test {

std::vector<NamedRun> runs() {
  const Words bfloat16{"--param-dtype", "bfloat16"}, rounded{"--reduce-dtype", "bfloat16"};
  const Words hybrid{"--strategy", "hybrid_shard", "--shard-size", "2"};
  return {
      {"full_shard", small_mlp(2)},
      {"full_shard_3", small_mlp(3)},
      {"shard_grad_op", small_mlp(3) + Words{"--strategy", "shard_grad_op"}},
      {"no_shard", small_mlp(3) + Words{"--strategy", "no_shard"} + rounded},
      {"zero1", small_mlp(2) + Words{"--strategy", "zero1", "--optimizer", "lion"}},
      {"hybrid", small_mlp(4) + hybrid + Words{"--grad-accum", "2"}},
      {"hybrid_zero2", small_mlp(4) + Words{"--strategy", "hybrid_shard_zero2", "--shard-size", "2",
                                            "--clip-grad-norm", "0.1"}},
      {"ignored", small_mlp(2) + Words{"--ignore", "head.*", "--backward-prefetch", "post"}},
      {"clip",
       small_mlp(3) + Words{"--clip-grad-norm", "0.1", "--optimizer", "sgd", "--momentum", "0.9"}},
      {"accumulate", small_mlp(2) + Words{"--grad-accum", "3", "--prefetch-depth", "2"}},
      {"accumulate_whole",
       small_mlp(2) + Words{"--grad-accum", "2", "--strategy", "zero1", "--clip-grad-norm", "0.5"}},
      {"bfloat16", small_mlp(3) + bfloat16 + Words{"--grad-accum", "2"}},
      {"bfloat16_rounded", small_mlp(3) + bfloat16 + rounded},
      {"bfloat16_whole", small_mlp(2) + bfloat16 + Words{"--strategy", "no_shard"}},
      {"bfloat16_hybrid", small_mlp(4) + bfloat16 + hybrid},
      {"float16", small_mlp(3) + Words{"--param-dtype", "float16", "--grad-accum", "2"}},
      {"frozen", small_mlp(3) + Words{"--freeze", "fc2.weight"}},
      {"lamb", small_mlp(3) + Words{"--optimizer", "lamb", "--clip-grad-norm", "0.1"}},
      {"lamb_whole", small_mlp(2) + bfloat16 +
                         Words{"--optimizer", "lamb", "--strategy", "zero1", "--grad-accum", "2"}},
      {"lamb_hybrid", small_mlp(4) + hybrid + Words{"--optimizer", "lamb", "--lr", "0.02"}},
      {"rank_means", small_mlp(3) + Words{"--loss-mean", "per_rank"}},
      {"bert_tiny", of_fixture("bert_tiny/model.onnx", 2) + bfloat16},
      {"gpt2_tiny",
       of_fixture("gpt2_tiny/model.onnx", 2) + Words{"--activation-checkpointing", "unit"}}};
}

class DeviceRanksTest : public testing::TestWithParam<NamedRun> {};

INSTANTIATE_TEST_SUITE_P(Runs, DeviceRanksTest, testing::ValuesIn(runs()), test_name);

TEST_P(DeviceRanksTest, GiveTheBitsOfTheCpu) {
  expect_bits_of_the_cpu(GetParam().command, {"captured_collectives"});
}

// With the CUDA library's operators, on the CUDA of tests/emulator: within 5e-5 of the CPU's.
TEST(DeviceRanksOperatorsTest, TheCudaKernelsGiveTheLossesOfTheCpu) {
  for (const char* model : {"bert_tiny/model.onnx", "gpt2_tiny/model.onnx"}) {
    SCOPED_TRACE(model);
    expect_near_losses(on_cpu(of_fixture(model, 2)),
                       run_on_device(OFSDP_EMULATED_DEVICE, of_fixture(model, 2)), 5e-5);
    // Products write gradients in float32, which the CPU rounds.
    const Words narrow = of_fixture(model, 2) + Words{"--param-dtype", "bfloat16"};
    expect_near_losses(on_cpu(narrow), run_on_device(OFSDP_EMULATED_DEVICE, narrow), 1e-2);
  }
}

TEST(DeviceRanksCountTest, ALongerRunNeitherAllocatesNorSynchronizesMore) {
  const auto counts = [](const char* steps) {
    Trained run = on_counting_device(
        fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                  "--eval-data", "none", "--steps", steps, "--clip-grad-norm", "1"}) +
        ranks(2));
    EXPECT_EQ(run.run.status, 0) << run.run.err;
    EXPECT_EQ(run.violations, std::vector<std::string>{});
    return run.counts;
  };
  auto few = counts("12"), many = counts("112");
  for (const char* name : {"allocations", "pinned_allocations", "bytes", "events_made", "releases",
                           "synchronizations", "captures", "captured_collectives", "collectives"}) {
    EXPECT_EQ(few[name], many[name]) << name;
  }
  EXPECT_EQ(many["graph_launches"] - few["graph_launches"], 2 * 100);
  EXPECT_EQ(many["operations"] - few["operations"],
            2 * 400);  // two columns, the numbers, the graph
}

TEST(DeviceRanksChoiceTest, RanksThatCannotBeJoinedAreRefusedOrLeftToTheCpu) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE,
                          "COUNTING_DEVICE_ALONE=they need NCCL: not found"};
  const Trained demanded = train(small_mlp(2), {"--device", "cuda"}, environment);
  EXPECT_EQ(demanded.run.status, 2);
  expect_one_line(demanded.run.err, {"--device cuda: 2 ranks: they need NCCL: not found"});
  const Trained chosen = train(small_mlp(2), {}, environment);
  EXPECT_NE(chosen.run.out.find("device: the CPU, since 2 ranks: they need NCCL: not found\n"),
            std::string::npos)
      << chosen.run.out;
  expect_same_bits(on_cpu(small_mlp(2)), chosen);
  EXPECT_EQ(train(small_mlp(1), {"--device", "cuda"}, environment).run.status, 0);
}

TEST(DeviceRanksChoiceTest, RanksOnOneDeviceAreRefusedWhereTheLibraryCannotShareIt) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE,
                          "COUNTING_DEVICE_SHARED=they share a GPU"};
  const Trained demanded = train(small_mlp(2), {"--device", "cuda"}, environment);
  EXPECT_EQ(demanded.run.status, 2);
  expect_one_line(demanded.run.err, {"--device cuda: 2 ranks: they share a GPU"});
  const Trained chosen = train(small_mlp(2), {}, environment);
  EXPECT_NE(chosen.run.out.find("device: the CPU, since 2 ranks: they share a GPU\n"),
            std::string::npos)
      << chosen.run.out;
}

TEST(DeviceRanksCheckpointTest, GoOnFromWhatTheCpuSavedAndTheOtherWayRound) {
  expect_checkpoints_of_both(
      small_mlp(2) + Words{"--param-dtype", "float16", "--strategy", "zero1"}, 6, 11);
}

// The last update in an epoch: one rank has fewer samples than the other, or none. A rank must not
// launch a captured step while another launches operators one by one.
TEST(DeviceRanksUnevenTest, SharesOfDifferentSizeGiveTheBitsOfTheCpu) {
  for (const size_t samples : {27u, 15u}) {
    for (const char* strategy : {"full_shard", "no_shard"}) {
      SCOPED_TRACE(format_text("{} samples, {}", samples, strategy));
      ModelFolder folder;
      folder.write("data/x.npy", onnx_bytes::linear_inputs(samples));
      folder.write("data/labels.npy", onnx_bytes::linear_labels(samples));
      const Words command =
          fsdp_run({folder.model(), "--loss", "cross_entropy", "--batch-size", "7", "--epochs", "4",
                    "--min-params", "1", "--strategy", strategy, "--clip-grad-norm", "0.1"}) +
          ranks(2);
      Trained device = on_counting_device(command);
      expect_same_bits(on_cpu(command), device);
      EXPECT_GT(device.counts["captured_collectives"], 0);
    }
  }
}

// An infinite number in sample `number` for the small linear model: rank number % 2 makes a NaN
// from it.
std::string with_infinity(size_t number) {
  std::string bytes = onnx_bytes::linear_inputs();
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(&bytes[bytes.size() - (12 - number) * 4 * sizeof(float)], &infinity,
              sizeof(infinity));
  return bytes;
}

// The line names the node that makes it. If parameters were updated with it, the line would name
// them instead, also parameters gathered from the other rank.
TEST(DeviceRanksFaultTest, DataOutOfRangeOnOneRankEndAllBeforeAnUpdate) {
  for (const Spoiled& spoiled : spoiled_data()) {
    for (const char* strategy : {"full_shard", "no_shard"}) {
      const testing_data::TempFolder folder;
      const Words command = train_spoiled(folder, spoiled) + ranks(2) +
                            Words{"--strategy", strategy, "--timeout", "20"};
      const Finished cpu = Program::run(command + Words{"--device", "cpu"});
      const Finished device =
          Program::run(command + Words{"--device", "cuda"},
                       {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE}});
      EXPECT_EQ(device.status, 2) << spoiled.name;
      EXPECT_EQ(cpu.err, device.err);
    }
  }
}

TEST(DeviceRanksFaultTest, ANanOnOneRankEndsAllBeforeAnUpdate) {
  for (const size_t sample : {5u, 6u}) {
    for (const auto& [accumulated, strategy] :
         {std::pair{"1", "full_shard"}, std::pair{"2", "full_shard"}, std::pair{"2", "no_shard"}}) {
      ModelFolder folder;
      folder.write("data/x.npy", with_infinity(sample));
      const Words command = folder.train() + ranks(2) + Words{"--no-shuffle",
                                                              "--batch-size",
                                                              "1",
                                                              "--grad-accum",
                                                              accumulated,
                                                              "--steps",
                                                              "5",
                                                              "--strategy",
                                                              strategy,
                                                              "--min-params",
                                                              "1",
                                                              "--timeout",
                                                              "5"};
      const Finished cpu = Program::run(command + Words{"--device", "cpu"});
      const Finished device =
          Program::run(command + Words{"--device", "cuda"},
                       {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE}});
      EXPECT_EQ(device.status, 1);
      expect_one_line(device.err, {"loss is NaN at step", format_text("rank {}", sample % 2),
                                   "first made by node"});
      EXPECT_EQ(cpu.err, device.err);
    }
  }
}

// Two ranks that would train for ever.
class EndlessRun {
 public:
  explicit EndlessRun(const Words& more = {}, const Words& environment = {})
      : program_(
            fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                      "--epochs", "1000000", "--eval-data", "none", "--threads", "1",
                      "--log-interval", "1", "--device", "cuda"}) +
                ranks(2) + more,
            {.environment = Words{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE} + environment}) {
    EXPECT_TRUE(program_.until_output("step 9/", 30)) << program_.err();
    ranks_ = children_of(program_.pid());
    std::ranges::sort(ranks_);  // started in this order
    EXPECT_EQ(ranks_.size(), 2u);
  }

  Finished after(int number, size_t rank) {
    kill(ranks_.at(rank), number);
    Finished finished = program_.wait(20);
    for (const pid_t pid : ranks_) {
      EXPECT_TRUE(holds_within(5, [&] { return !is_alive(pid); })) << "rank of pid " << pid;
    }
    return finished;
  }

 private:
  Program program_;
  std::vector<pid_t> ranks_;
};

TEST(DeviceRanksFaultTest, ARankThatIsKilledIsNamed) {
  for (const size_t rank : {0u, 1u}) {
    EndlessRun run;
    const Finished finished = run.after(SIGKILL, rank);
    EXPECT_EQ(finished.status, 1);
    expect_one_line(finished.err,
                    {format_text("rank {} (pid", rank), "died while rank", "at step"});
    EXPECT_LT(finished.seconds, 15);
  }
}

TEST(DeviceRanksFaultTest, ARankThatIsStoppedEndsTheRunInTime) {
  EndlessRun run({"--timeout", "1"});
  const Finished finished = run.after(SIGSTOP, 1);
  EXPECT_EQ(finished.status, 1);
  expect_one_line(finished.err, {"rank", "step", "1 s"});
}

Finished fifty_steps(const Words& environment) {
  return Program::run(
      fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                "--steps", "50", "--eval-data", "none", "--device", "cuda", "--timeout", "1"}) +
          ranks(2),
      {.environment = Words{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE} + environment});
}

TEST(DeviceRanksFaultTest, ACollectiveThatNeverEndsIsNamed) {
  const Finished finished = fifty_steps({"COUNTING_DEVICE_STUCK=1:9"});
  EXPECT_EQ(finished.status, 1);
  expect_one_line(finished.err,
                  {"waited 1 s on its device: all-gather of unit 0, step 2; another rank's"});
}

// In a captured step: the 40th collective is in one.
TEST(DeviceRanksFaultTest, ADeviceThatFailsIsNamed) {
  const Finished finished = fifty_steps({"COUNTING_DEVICE_FAILS=1:40"});
  EXPECT_EQ(finished.status, 1);
  expect_one_line(finished.err, {"rank 1: ", "step ", "an illegal address"});
  EXPECT_LT(finished.seconds, 5);
}

// See [Note: giving up devices]: by then each run has said why it ends.
TEST(DeviceRanksFaultTest, AnAbortThatDoesNotComeBackEndsWithTheProcess) {
  const std::string hangs = "COUNTING_DEVICE_ABORT_HANGS=1";
  EndlessRun killed({}, {hangs});
  const Finished after_death = killed.after(SIGKILL, 0);
  EXPECT_EQ(after_death.status, 1);
  expect_one_line(after_death.err, {"rank 0 (pid", "died while rank"});

  const Finished late = fifty_steps({hangs, "COUNTING_DEVICE_STUCK=1:40"});
  EXPECT_EQ(late.status, 1);
  expect_one_line(late.err, {"waited 1 s on its device: ", "another rank's"});

  const Finished failed = fifty_steps({hangs, "COUNTING_DEVICE_FAILS=1:40"});
  EXPECT_EQ(failed.status, 1);
  expect_one_line(failed.err, {"rank 1: ", "step ", "an illegal address"});

  ModelFolder folder;
  folder.write("data/x.npy", with_infinity(5));
  const Finished nan = Program::run(
      folder.train() + ranks(2) +
          Words{"--device", "cuda", "--no-shuffle", "--batch-size", "1", "--grad-accum", "2",
                "--steps", "5", "--min-params", "1", "--timeout", "5"},
      {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE, hangs}});
  EXPECT_EQ(nan.status, 1);
  expect_one_line(nan.err, {"loss is NaN at step", "rank 1", "first made by node"});
  for (const Finished* run : {&after_death, &late, &failed, &nan}) EXPECT_LT(run->seconds, 15);
}

}  // namespace device_ranks_test
}  // namespace ofsdp
