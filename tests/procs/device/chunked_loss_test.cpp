// Scores of 128 MiB, which the plan cuts into chunks of rows: the losses of small micro-batches
// with whole scores; the CPU's bits on the counting device, and the same bits under every strategy
// and on any number of ranks; and the bytes that the plan saves.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace chunked_loss_test {

using testing::HasSubstr;
using testing::Not;

constexpr size_t kRows = 16384, kWidth = 20, kClasses = 4099;

// The mlp with a head for 4099 classes; a sixth of the labels is ignored, or none.
struct Files {
  explicit Files(bool ignores = true) {
    std::vector<float> x(kRows * kWidth);
    std::vector<int64_t> labels(kRows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
    for (size_t i = 0; i < kRows; ++i) {
      labels[i] = ignores && i % 6 == 1 ? -100 : static_cast<int64_t>(i * 31 % kClasses);
    }
    folder.write("x.npy", testing_data::npy("<f4", "(16384, 20)", x));
    folder.write("labels.npy", testing_data::npy("<i8", "(16384,)", labels));
  }

  Words command(const std::string& batch) const { return fsdp_run(options(batch)); }
  Words options(const std::string& batch) const {
    return {fixture("mlp/model.onnx"),
            "--loss",
            "cross_entropy",
            "--replace-head",
            "4099",
            "--data",
            folder.path(),
            "--eval-data",
            "none",
            "--no-shuffle",
            "--min-params",
            "1000",
            "--epochs",
            "1",
            "--batch-size",
            batch};
  }

  testing_data::TempFolder folder;
};

// On a device, where `plan` measures nothing.
std::string planned(const Words& options, const char* form) {
  const Finished run =
      Program::run(fsdp_run(Words{"plan"} + options + Words{"--device", "cuda", form}),
                   {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE}});
  EXPECT_EQ(run.status, 0) << run.err;
  return run.out;
}

TEST(ChunkedLoss, HasTheLossesOfSmallMicroBatches) {
  for (const bool ignores : {true, false}) {
    const Files files(ignores);
    const Trained whole = on_cpu(files.command("1024") + Words{"--grad-accum", "8"} + ranks(1));
    const Trained chunks = on_cpu(files.command("8192") + ranks(1));
    expect_near_losses(whole, chunks, 1e-6);
  }
}

TEST(ChunkedLoss, KeepsTheScoresOutOfThePlan) {
  const Files files;
  EXPECT_THAT(planned(files.options("8192"), "--verbose"), HasSubstr("chunked_loss 1"));
  EXPECT_THAT(planned(files.options("8160"), "--verbose"), Not(HasSubstr("chunked_loss")));
  const auto arena = [&](const char* batch) {
    double most = 0;
    const auto plan = nlohmann::json::parse(planned(files.options(batch), "--json"));
    for (const auto& program : plan.at("programs")) {
      most = std::max(most, program.at("arena_bytes").get<double>());
    }
    return most;
  };
  const double scores = 8192.0 * kClasses * sizeof(float);
  EXPECT_LT(arena("8192"), scores / 2);
  EXPECT_GT(arena("8160"), scores * 0.99);
}

TEST(ChunkedLoss, GivesTheCpusBitsOnADevice) {
  const Files files;
  const Words command = files.command("8192");
  expect_bits_of_the_cpu(command + ranks(1));
  expect_bits_of_the_cpu(command + ranks(2) + Words{"--param-dtype", "bfloat16"});
}

TEST(ChunkedLoss, StrategiesAndNumbersOfRanksChangeNoBit) {
  const Files files;
  const Words two = files.command("8192") + ranks(2);
  const Trained first = on_cpu(two);
  for (const char* strategy : {"shard_grad_op", "no_shard", "zero1"}) {
    EXPECT_TRUE(first.file == on_cpu(two + Words{"--strategy", strategy}).file) << strategy;
  }
  const Words slices = files.command("8192") +
                       Words{"--deterministic", "across_ranks", "--global-batch-size", "16384"};
  const Trained alone = on_cpu(slices + ranks(1));
  EXPECT_FALSE(alone.file.empty()) << alone.run.err;
  for (const int world : {2, 3}) {
    EXPECT_TRUE(alone.file == on_cpu(slices + ranks(world)).file) << world;
  }
}

}  // namespace chunked_loss_test
}  // namespace ofsdp
