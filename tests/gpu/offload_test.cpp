// --cpu-offload on a GPU of this host: the real program against the CPU, with and without a
// captured step, and with a limit that the states alone would pass. Skipped without a GPU.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/core/device.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace {

struct TrainingRun {
  Finished finished;
  std::vector<double> losses;
  std::string file;
};

TrainingRun train(const Words& command, const Words& more) {
  const testing_data::TempFolder folder;
  const std::string metrics = folder.path() + "/metrics", output = folder.path() + "/out.onnx";
  Start start;
  start.patience = 240;
  if (const char* library = std::getenv("OFSDP_CUDA_LIBRARY"); library != nullptr) {
    start.environment.push_back(std::string("OFSDP_CUDA_LIBRARY=") + library);
  }
  TrainingRun run{
      Program::run(command + more + Words{"--metrics", metrics, "--output", output}, start),
      {},
      onnx_bytes::content(output)};
  std::ifstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row["kind"] == "step") run.losses.push_back(row["loss"]);
    if (row["kind"] == "end") {
      EXPECT_EQ(row["peak_bytes"], row["planned_peak_bytes"]);
    }
  }
  return run;
}

class OffloadOnAGpu : public testing::TestWithParam<Words> {
 protected:
  void SetUp() override {
    if (!count_devices().ok()) GTEST_SKIP() << count_devices().error().message();
  }
};

INSTANTIATE_TEST_SUITE_P(Runs, OffloadOnAGpu,
                         testing::Values(Words{}, Words{"--clip-grad-norm", "0.1"},
                                         Words{"--strategy", "zero1", "--grad-accum", "2"},
                                         Words{"--param-dtype", "bfloat16", "--grad-accum", "3"},
                                         Words{"--param-dtype", "float16"}));

TEST_P(OffloadOnAGpu, GivesTheLossesOfTheCpuAndTheSameTwice) {
  const Words command =
      fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                "--steps", "12", "--batch-size", "7", "--eval-data", "none"}) +
      GetParam();
  const TrainingRun cpu = train(command, {"--device", "cpu"});
  const bool narrow = !GetParam().empty() && GetParam()[0] == "--param-dtype";
  for (const char* what : {"params", "optimizer"}) {
    SCOPED_TRACE(what);
    const Words offload{"--device", "cuda", "--cpu-offload", what};
    const TrainingRun captured = train(command, offload);
    const TrainingRun launched = train(command, offload + Words{"--cuda-graph", "off"});
    ASSERT_EQ(captured.finished.status, 0) << captured.finished.err;
    ASSERT_EQ(cpu.losses.size(), captured.losses.size());
    for (size_t i = 0; i < cpu.losses.size(); ++i) {
      EXPECT_NEAR(captured.losses[i], cpu.losses[i], (narrow ? 5e-3 : 5e-5) * cpu.losses[i]) << i;
    }
    EXPECT_EQ(captured.losses, launched.losses);
    EXPECT_TRUE(captured.file == launched.file);
    EXPECT_TRUE(captured.file == train(command, offload).file);
  }
}

}  // namespace
}  // namespace ofsdp
