// The checkpoint folder of a run: which checkpoints stay, their contents, that evaluation
// and fine-tuning start from them, and that an exported file is the input with other
// weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "importer/file/onnx_file.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace checkpoint_files_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

Words run_of(int steps) {
  return checkpointed_model() + ranks(2) +
         Words{"--batch-size", "7", "--steps", std::to_string(steps)};
}

TEST(CheckpointFilesTest, TheNewestStay) {
  const CheckpointRuns runs;
  const Words often{"--checkpoint-interval", "2step"};
  runs.trained(run_of(9) + runs.saving() + often + Words{"--keep-checkpoints", "3"});
  EXPECT_THAT(runs.checkpoints(), ElementsAre("step-00000006", "step-00000008", "step-00000009"));
  runs.trained(run_of(13) + runs.resuming() + often);
  EXPECT_THAT(runs.checkpoints(), ElementsAre("step-00000012", "step-00000013"));
  // From an older one: checkpoints written later are newer, whatever their step.
  fs::copy(runs.dir() + "/step-00000012", runs / "older", fs::copy_options::recursive);
  runs.trained(run_of(20) + runs.resuming() + often);
  runs.trained(run_of(14) + runs.saving() + often + Words{"--resume", runs / "older"});
  EXPECT_THAT(runs.checkpoints(), ElementsAre("step-00000014", "step-00000020"));
  runs.trained(run_of(21) + runs.resuming() + often);
  EXPECT_THAT(runs.last().out, HasSubstr("step-00000014"));
}

// The saved configuration is complete: read from another folder, it trains the same file again, and
// with another number of ranks the same except for the order of sums.
TEST(CheckpointFilesTest, TheConfigurationIsSavedAndRunsAgain) {
  const CheckpointRuns runs;
  fs::create_directory(runs / "in");
  fs::copy(fixture("mlp/data"), runs / "in/data");
  std::ofstream(runs / "in/c.yaml")
      << "data: {train: {x: {file: data/x.npy}, labels: {file: data/labels.npy}}}\n"
         "batch_size: 7\nsteps: 5\nloss: cross_entropy\ncheckpoint_dir: ../checkpoints\n"
         "min_params: 1000\nclip_grad_norm: 1\nseed: 3\nstrategy: shard_grad_op\n";
  const Words model = fsdp_run({fixture("mlp/model.onnx")});
  const std::string trained =
      runs.trained(model + Words{"--config", runs / "in/c.yaml", "--verbose", "on"} + ranks(2));
  const std::string saved = runs / "saved.yaml";
  fs::copy(runs.dir() + "/step-00000005/config.yaml", saved);
  EXPECT_THAT(runs.last().out, HasSubstr(onnx_bytes::content(saved))) << "printed as well";
  EXPECT_THAT(onnx_bytes::content(saved), HasSubstr("\nnproc_per_node: 2\n"));
  EXPECT_THAT(onnx_bytes::content(saved), HasSubstr("\nstrategy: shard_grad_op\n"));
  fs::remove_all(runs.dir());
  EXPECT_TRUE(runs.trained(model + Words{"--config", saved}) == trained);
  EXPECT_EQ(onnx_bytes::content(runs.dir() + "/step-00000005/config.yaml").size(),
            onnx_bytes::content(saved).size());
  runs.trained(model +
               Words{"--config", saved, "--overwrite-checkpoints", "on", "--verbose", "on"} +
               ranks(1));
  EXPECT_THAT(runs.last().out, HasSubstr("global_batch_size: 14  # batch_size: 14\n"));
}

TEST(CheckpointFilesTest, TheBestStaysAndIsFound) {
  const CheckpointRuns runs;
  const std::string metrics = runs / "m.jsonl";
  runs.trained(run_of(40) + runs.saving() +
               Words{"--lr", "0.05", "--eval-data", fixture("mlp/data"), "--eval-interval", "3step",
                     "--checkpoint-interval", "5step", "--keep-checkpoints", "1", "--keep-best",
                     "loss", "--metrics", metrics});
  double best = HUGE_VAL;
  int step = 0;
  for (const auto& row : rows_of(metrics, "eval")) {
    if (row.at("loss").get<double>() >= best) continue;
    best = row.at("loss").get<double>();
    step = row.at("step").get<int>();
  }
  const auto manifest = runs.manifest("best");
  EXPECT_EQ(manifest["step"], step);
  EXPECT_NEAR(manifest["evaluation"]["loss"].get<double>(), best, 1e-8 * best);
  EXPECT_LE(runs.checkpoints().size(), 3u) << "best, the link to it, the newest";
  const Finished evaluation = Program::run(
      fsdp_run({"eval", fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--eval-data",
                fixture("mlp/data"), "--batch-size", "7", "--resume", runs.dir() + "/best"}) +
      ranks(2));
  EXPECT_EQ(evaluation.status, 0) << evaluation.err;
  EXPECT_THAT(evaluation.out, HasSubstr(format_text("loss {:.4f}", best)));
}

TEST(CheckpointFilesTest, TheBestStaysWhenARunGoesOnWithoutKeepBest) {
  const CheckpointRuns runs;
  const Words plain =
      runs.saving() +
      Words{"--lr", "0.05", "--checkpoint-interval", "5step", "--keep-checkpoints", "1"};
  runs.trained(
      run_of(20) + plain +
      Words{"--eval-data", fixture("mlp/data"), "--eval-interval", "3step", "--keep-best", "loss"});
  const auto best = runs.manifest("best");
  runs.trained(run_of(40) + plain + Words{"--resume", "latest"});
  EXPECT_TRUE(runs.manifest("best") == best);
}

TEST(CheckpointFilesTest, ATrainedFileIsAStart) {
  const CheckpointRuns runs;
  runs.trained(run_of(10) + runs.saving() + Words{"--checkpoint-type", "full"});
  const std::string trained = runs / "first.onnx";
  fs::copy(runs / "trained.onnx", trained);
  const std::string expected =
      runs.trained(fsdp_run({trained, "--loss", "cross_entropy", "--min-params", "1000", "--data",
                             fixture("mlp/data"), "--batch-size", "7", "--steps", "5"}) +
                   ranks(2));
  EXPECT_TRUE(runs.trained(run_of(5) + Words{"--resume", trained}) == expected);
  const std::string full = runs.dir() + "/step-00000010/model.onnx";
  EXPECT_TRUE(runs.trained(run_of(5) + Words{"--resume", full}) == expected);
}

// The file with zeros in place of the weights.
std::string without_weights(const std::string& path) {
  std::string bytes = onnx_bytes::content(path);
  auto file = OnnxFile::open(path);
  EXPECT_TRUE(file.ok()) << path;
  for (const Initializer& weight : file->initializers()) {
    if (weight.file != 0) continue;
    bytes.replace(static_cast<size_t>(weight.offset), static_cast<size_t>(weight.bytes),
                  static_cast<size_t>(weight.bytes), '\0');
  }
  return bytes;
}

TEST(ExportTest, IsTheInputWithTheTrainedWeights) {
  for (const std::string type : {"sharded", "full", "local"}) {
    for (const std::string model : {"model.onnx", "model_legacy.onnx", "model_with_loss.onnx"}) {
      SCOPED_TRACE(type + " " + model);
      const CheckpointRuns runs;
      const std::string trained =
          runs.trained(mlp(model) + ranks(3) + runs.saving() +
                       Words{"--steps", "4", "--checkpoint-type", type, "--min-params", "1000"});
      const std::string output = runs / "exported.onnx";
      const Finished run = Program::run(fsdp_run({"export", runs.dir(), "-o", output, "--verify"}));
      EXPECT_EQ(run.status, 0) << run.err;
      EXPECT_THAT(run.out, HasSubstr(output + " to it 0, "));
      EXPECT_TRUE(onnx_bytes::content(output) == trained);
      EXPECT_TRUE(without_weights(output) == without_weights(fixture("mlp/" + model)));
    }
  }
}

// Weights in a separate file, in the three places where they may lie.
TEST(ExportTest, ExternalDataAndOtherTypesStayAsTheyWere) {
  using namespace onnx_bytes;
  const ModelFolder folder;
  SmallModel model = linear_model();
  folder.write("weights.bin", std::string(64, 'x') + bytes_of(linear_weights()) + "tail");
  model.initializers = {tensor("w", kFloat, {4, 3}, external("weights.bin", "64", "48")),
                        tensor("b", kFloat, {3}, unpacked_floats({0.5f, 0.f, -0.5f}))};
  folder.write("model.onnx", model.bytes());
  for (const std::string type : {"sharded", "full", "local"}) {
    for (const int world : {1, 3}) {
      SCOPED_TRACE(format_text("{} {}", type, world));
      const CheckpointRuns runs;
      fs::create_directories(runs / "trained");
      fs::create_directories(runs / "exported");
      const Finished run = Program::run(
          fsdp_run({folder.model(), "--loss", "cross_entropy", "--batch-size", "2", "--steps", "2",
                    "--checkpoint-type", type, "--output", runs / "trained/model.onnx"}) +
          ranks(world) + runs.saving());
      ASSERT_EQ(run.status, 0) << run.err;
      const Finished exported = Program::run(
          fsdp_run({"export", runs.dir(), "-o", runs / "exported/model.onnx", "--verify"}));
      EXPECT_EQ(exported.status, 0) << exported.err;
      for (const char* name : {"model.onnx", "weights.bin"}) {
        EXPECT_EQ(content(runs / ("exported/" + std::string(name))),
                  content(runs / ("trained/" + std::string(name))))
            << name;
      }
      const std::string expected = content(runs / "trained/model.onnx");
      const Finished resumed =
          Program::run(fsdp_run({folder.model(), "--loss", "cross_entropy", "--batch-size", "2",
                                 "--steps", "2", "--output", runs / "trained/model.onnx"}) +
                       ranks(2) + runs.resuming());
      EXPECT_EQ(resumed.status, 0) << resumed.err;
      EXPECT_EQ(content(runs / "trained/model.onnx"), expected);
    }
  }
}

TEST(ExportTest, EveryShardIsAModelFile) {
  const CheckpointRuns runs;
  runs.trained(run_of(3) + runs.saving());
  size_t slices = 0;
  for (const char* name : {"rank-00000-of-00002.onnx", "rank-00001-of-00002.onnx"}) {
    const auto file = OnnxFile::open(runs.dir() + "/step-00000003/" + name);
    ASSERT_TRUE(file.ok()) << file.error().message();
    slices += file->initializers().size();
  }
  EXPECT_GE(slices, 18u) << "six parameters and two states of each";
}

TEST(ExportTest, WhatCannotBe) {
  const CheckpointRuns runs;
  fs::copy(fixture("mlp/model.onnx"), runs / "model.onnx");
  runs.trained(fsdp_run({runs / "model.onnx", "--loss", "cross_entropy", "--data",
                         fixture("mlp/data"), "--steps", "2"}) +
               runs.saving());
  const Words command = fsdp_run({"export", runs.dir()});
  const std::string output = runs / "e.onnx";
  expect_one_line(Program::run(command).err, {"-o FILE"});
  expect_one_line(Program::run(command + Words{"-o", runs / "no/e.onnx"}).err, {"no/e.onnx"});
  expect_one_line(Program::run(command + Words{"-o", output, "--format", "pt"}).err, {"--format"});
  fs::rename(runs / "model.onnx", runs / "moved.onnx");
  const Finished gone = Program::run(command + Words{"-o", output});
  EXPECT_EQ(gone.status, 2);
  expect_one_line(gone.err, {runs / "model.onnx", "found none"});
  EXPECT_FALSE(fs::exists(output));
}

// An asynchronous save writes from a copy. The plan has this copy, and it exists before step one.
TEST(CheckpointMemoryTest, ThePlanHasTheCopy) {
  const CheckpointRuns runs;
  std::vector<double> peaks;
  for (const Words& how : {Words{"--checkpoint-sync"}, Words{}}) {
    std::filesystem::remove_all(runs.dir());
    const std::string metrics = runs / "m.jsonl";
    runs.trained(run_of(6) + runs.saving() + how +
                 Words{"--checkpoint-interval", "2step", "--metrics", metrics});
    const auto rows = rows_of(metrics);
    const auto& end = rows.back();
    EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes"));
    EXPECT_EQ(rows.front().at("peak_bytes"), end.at("peak_bytes")[0]);
    peaks.push_back(end.at("peak_bytes")[0].get<double>());
  }
  const double shard = 3.0 * 4 * 4757 / 2;  // parameters and two states for each
  EXPECT_NEAR(peaks[1] - peaks[0], shard, 8192);
}

// The file has rank 0's running statistics; each rank goes on with separate ones.
TEST(StatisticsTest, SameBitsWithBatchNormalization) {
  const Words model =
      fsdp_run({OFSDP_SOURCE_DIR "/tests/oracle/cases/residual/legacy.onnx", "--loss",
                "cross_entropy", "--global-batch-size", "8", "--checkpoint-interval", "2step"});
  for (const std::string type : {"sharded", "full", "local"}) {
    for (const int world : {1, 2}) {
      SCOPED_TRACE(format_text("{} {}", type, world));
      const CheckpointRuns runs;
      const Words run = model + ranks(world) + Words{"--checkpoint-type", type};
      const CheckpointRuns whole;
      const std::string expected = whole.trained(run + whole.saving() + Words{"--steps", "7"});
      runs.trained(run + runs.saving() + Words{"--steps", "3"});
      EXPECT_TRUE(runs.trained(run + runs.resuming() + Words{"--steps", "7"}) == expected);
      const std::string output = runs / "e.onnx";
      const Finished exported = Program::run(fsdp_run({"export", runs.dir(), "-o", output}));
      EXPECT_EQ(exported.status, 0) << exported.err;
      EXPECT_TRUE(onnx_bytes::content(output) == expected);
    }
  }
}

}  // namespace checkpoint_files_test
}  // namespace ofsdp
