// Checkpoints in a shared folder, on an unreliable file system: a system error is no damage to a
// checkpoint, foreign files stay, another run's checkpoints are refused, and saves work where names
// cannot be exchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace shared_folder_test {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;

Words run_of(int steps) {
  return checkpointed_model() + ranks(2) + Words{"--batch-size", "7",       "--checkpoint-interval",
                                                 "1step",        "--steps", std::to_string(steps)};
}

Start preloaded(const CheckpointRuns& runs, std::vector<std::string> environment) {
  environment.emplace_back("LD_PRELOAD=" OFSDP_FAIL_DISK_CALLS);
  environment.push_back("FAIL_FOLDER=" + runs.dir());
  return {.environment = environment};
}

void expect_fault(const CheckpointRuns& runs, const Start& start, const std::string& says) {
  const std::vector<std::string> before = runs.checkpoints();
  const Finished ended = Program::run(run_of(4) + runs.resuming(), start);
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr(says));
  EXPECT_EQ(runs.checkpoints(), before);
}

TEST(SharedFolder, AnErrorOfTheSystemEndsTheRunAndRenamesNothing) {
  const CheckpointRuns runs;
  runs.trained(run_of(2) + runs.saving());
  for (const int error : {ESTALE, EIO, EMFILE}) {
    for (const char* file : {"rank-0", "manifest.json"}) {
      SCOPED_TRACE(std::strerror(error) + std::string(" ") + file);
      const std::string number = "FAIL_READS=" + std::to_string(error);
      const std::string part = std::string("FAIL_READS_OF=") + file;
      expect_fault(runs, preloaded(runs, {number, part}), std::strerror(error));
      expect_fault(runs, preloaded(runs, {number, part, "FAIL_RANK=1"}), std::strerror(error));
    }
  }
}

// A new run numbers and removes checkpoints by the manifests of the old ones.
TEST(SharedFolder, AManifestThatCannotBeReadEndsARunThatBeginsAnew) {
  const CheckpointRuns runs;
  runs.trained(run_of(2) + runs.saving());
  const std::vector<std::string> before = runs.checkpoints();
  const Start start =
      preloaded(runs, {"FAIL_READS=" + std::to_string(ESTALE), "FAIL_READS_OF=manifest.json"});
  for (const char* overwrite : {"off", "on"}) {
    const Finished ended = Program::run(
        run_of(4) + runs.saving() + Words{"--overwrite-checkpoints", overwrite}, start);
    EXPECT_EQ(ended.status, 1);
    expect_one_line(ended.err, {"manifest.json", std::strerror(ESTALE)});
    EXPECT_EQ(runs.checkpoints(), before);
  }
}

TEST(SharedFolder, ARankThatDoesNotSeeTheFolderEndsTheRun) {
  const CheckpointRuns runs;
  runs.trained(run_of(2) + runs.saving());
  expect_fault(runs, preloaded(runs, {"FAIL_ABSENT=1", "FAIL_RANK=1"}),
               "rank 0 sees a checkpoint there, rank 1 none");
}

TEST(SharedFolder, WithHarmedCheckpointsAloneNothingStartsFromTheBeginning) {
  const CheckpointRuns runs;
  runs.trained(run_of(2) + runs.saving());
  for (const std::string& name : runs.checkpoints()) {
    fs::resize_file(runs.dir() + "/" + name + "/manifest.json", 10);
  }
  const Finished ended = Program::run(run_of(4) + runs.resuming());
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("all 2 checkpoints"));
  EXPECT_THAT(runs.checkpoints(), Contains("bad-step-00000002"));
}

TEST(SharedFolder, ForeignFilesStay) {
  const CheckpointRuns runs;
  const std::vector<std::string> foreign = {".download.tmp", ".precious.tmp", ".out.onnx.77.tmp",
                                            ".step-1.tmp", ".step-00000001.thesis.tmp"};
  for (const std::string& name : foreign) {
    fs::create_directories(runs.dir() + "/" + name);
    std::ofstream(runs.dir() + "/" + name + "/thesis.txt") << "years";
  }
  fs::create_directories(runs.dir() + "/.step-00000009.0123456789abc.tmp");  // from a killed run
  runs.trained(run_of(2) + runs.saving());
  for (const std::string& name : foreign) {
    EXPECT_TRUE(fs::exists(runs.dir() + "/" + name + "/thesis.txt")) << name;
  }
  EXPECT_FALSE(fs::exists(runs.dir() + "/.step-00000009.0123456789abc.tmp"));
}

TEST(SharedFolder, AnotherRunsCheckpointsAreRefused) {
  const CheckpointRuns runs;
  runs.trained(run_of(3) + runs.saving());
  const std::vector<std::string> before = runs.checkpoints();
  const Finished ended = Program::run(run_of(1) + runs.saving());
  EXPECT_EQ(ended.status, 2);
  expect_one_line(ended.err, {"--checkpoint-dir", "step-00000003", "--overwrite-checkpoints on"});
  EXPECT_EQ(runs.checkpoints(), before);
  runs.trained(run_of(1) + runs.saving() + Words{"--overwrite-checkpoints", "on"});
  EXPECT_THAT(runs.checkpoints(), Contains("step-00000001"));
}

TEST(SharedFolder, AStepIsSavedAgainWhereNamesCannotBeExchanged) {
  const CheckpointRuns runs;
  const std::string whole =
      runs.trained(run_of(3) + runs.saving() + Words{"--keep-checkpoints", "3"});
  const Words again = run_of(3) + runs.saving() +
                      Words{"--keep-checkpoints", "3", "--resume", runs.dir() + "/step-00000001"};
  EXPECT_EQ(runs.trained(again, preloaded(runs, {"FAIL_FLAGS=1"})), whole);
  EXPECT_EQ(runs.checkpoints(),
            (std::vector<std::string>{"step-00000001", "step-00000002", "step-00000003"}));
}

TEST(SharedFolder, ACheckpointThatMadeRoomGetsItsNameBack) {
  const CheckpointRuns runs;
  runs.trained(run_of(2) + runs.saving());
  fs::rename(runs.dir() + "/step-00000002", runs.dir() + "/.step-00000002.aside");  // then a kill
  runs.trained(run_of(3) + runs.resuming());
  EXPECT_THAT(runs.last().out, HasSubstr("step 2"));
}

}  // namespace shared_folder_test
}  // namespace ofsdp
