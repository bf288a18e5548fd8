// Damaged checkpoints and checkpoints of another run: --resume latest passes over them
// with a message. A named one is refused, in one line with the file, the expected and the
// found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "fsdp/checkpoint/manifest.h"
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace bad_checkpoint_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kLast = "step-00000006";
constexpr const char* kBefore = "step-00000005";
constexpr const char* kShard = "rank-00001-of-00002.onnx";

Words run_of(int steps) {
  return checkpointed_model() + ranks(2) +
         Words{"--batch-size", "7", "--steps", std::to_string(steps)};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void flip(const std::string& path, size_t byte) {
  std::string bytes = onnx_bytes::content(path);
  bytes.at(byte) = static_cast<char>(bytes[byte] ^ 0x10);
  write(path, bytes);
}

struct Harm {
  std::string name;
  std::function<void(const CheckpointRuns&)> harm;
  std::string says;  // for a named checkpoint
};

std::string at(const CheckpointRuns& runs, const std::string& checkpoint, const std::string& file) {
  return runs.dir() + "/" + checkpoint + "/" + file;
}

void change_manifest(const CheckpointRuns& runs, const std::function<void(Manifest&)>& change) {
  const std::string path = at(runs, kLast, kManifestName);
  auto manifest = parse_manifest(onnx_bytes::content(path));
  ASSERT_TRUE(manifest.ok()) << manifest.error().message();
  change(*manifest);
  write(path, to_text(*manifest));
}

std::vector<Harm> harms() {
  return {
      {"Truncated", [](const auto& r) { fs::resize_file(at(r, kLast, kShard), 1000); },
       "bytes, found 1000"},
      {"Longer", [](const auto& r) { fs::resize_file(at(r, kLast, kShard), 50000); },
       "found 50000"},
      {"Missing", [](const auto& r) { fs::remove(at(r, kLast, kShard)); }, "is missing"},
      {"FlippedValue", [](const auto& r) { flip(at(r, kLast, kShard), 20000); }, "checksum"},
      {"FlippedHeader", [](const auto& r) { flip(at(r, kLast, kShard), 40); }, "header"},
      {"ForeignShard",
       [](const auto& r) {
         fs::copy_file(at(r, kBefore, kShard), at(r, kLast, kShard),
                       fs::copy_options::overwrite_existing);
       },
       kShard},
      {"ShardOfAnotherRank",
       [](const auto& r) {
         fs::copy_file(at(r, kLast, "rank-00000-of-00002.onnx"), at(r, kLast, kShard),
                       fs::copy_options::overwrite_existing);
       },
       kShard},
      {"ManifestCut", [](const auto& r) { fs::resize_file(at(r, kLast, kManifestName), 700); },
       "manifest.json: expected a manifest as JSON"},
      {"ManifestEmpty", [](const auto& r) { fs::resize_file(at(r, kLast, kManifestName), 0); },
       "manifest.json"},
      {"ManifestChanged",
       [](const auto& r) {
         std::string text = onnx_bytes::content(at(r, kLast, kManifestName));
         text.replace(text.find("\"step\": 6"), 9, "\"step\": 7");
         write(at(r, kLast, kManifestName), text);
       },
       "it was changed"},
      {"NewerVersion",
       [](const auto& r) {
         std::string text = onnx_bytes::content(at(r, kLast, kManifestName));
         text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
         write(at(r, kLast, kManifestName), text);
       },
       "expected version 1, found 2"},
      {"WrongWorld", [](const auto& r) { change_manifest(r, [](Manifest& m) { m.world = 1; }); },
       "expected a rank of 1, found rank 1"},
      {"AFileTooFew",
       [](const auto& r) { change_manifest(r, [](Manifest& m) { m.files.pop_back(); }); },
       "expected"},
      {"FileElsewhere",
       [](const auto& r) {
         change_manifest(
             r, [](Manifest& m) { m.files[0].name = "../step-00000005/" + m.files[0].name; });
       },
       "expected the plain name of a file"},
      {"SliceOutside",
       [](const auto& r) {
         change_manifest(r, [](Manifest& m) { m.files[0].slices[0].first = int64_t{1} << 40; });
       },
       "elements"},
  };
}

class HarmedCheckpointTest : public testing::TestWithParam<size_t> {
 protected:
  static void SetUpTestSuite() {
    base_ = new CheckpointRuns;
    expected_ = new std::string(base_->trained(run_of(9)));
    base_->trained(run_of(6) + base_->saving() +
                   Words{"--checkpoint-interval", "1step", "--keep-checkpoints", "3"});
  }
  static void TearDownTestSuite() {
    delete base_;
    delete expected_;
  }
  static CheckpointRuns* base_;
  static std::string* expected_;
};

CheckpointRuns* HarmedCheckpointTest::base_ = nullptr;
std::string* HarmedCheckpointTest::expected_ = nullptr;

INSTANTIATE_TEST_SUITE_P(All, HarmedCheckpointTest, testing::Range(size_t{0}, harms().size()),
                         [](const auto& info) { return harms()[info.param].name; });

TEST_P(HarmedCheckpointTest, LatestPassesOverItAndANamedOneIsRefused) {
  const Harm harm = harms()[GetParam()];
  const CheckpointRuns runs;
  fs::copy(base_->dir(), runs.dir(), fs::copy_options::recursive);
  harm.harm(runs);
  const std::string named = runs.dir() + "/" + kLast;
  for (const Words& world : {ranks(1), ranks(2), ranks(3)}) {
    const Finished refused = Program::run(run_of(9) + world + Words{"--resume", named});
    EXPECT_EQ(refused.status, 2);
    expect_one_line(refused.err, {named, harm.says});
  }
  EXPECT_TRUE(runs.trained(run_of(9) + runs.resuming()) == *expected_);
  EXPECT_THAT(runs.last().err, HasSubstr(named));
  EXPECT_EQ(lines_of(runs.last().err).size(), 1u) << runs.last().err;
  EXPECT_THAT(runs.last().out, HasSubstr("resuming from " + runs.dir() + "/" + kBefore));
  EXPECT_TRUE(fs::exists(runs.dir() + "/bad-" + kLast)) << "its bytes are kept";
}

TEST(ForeignCheckpointTest, IsRefused) {
  const CheckpointRuns runs;
  runs.trained(run_of(3) + runs.saving());
  const std::string named = runs.dir() + "/step-00000003";
  const ModelFolder other;
  const std::vector<std::pair<Words, Words>> all = {
      {other.train() + Words{"--resume", named}, {named, "another graph"}},
      {run_of(9) + Words{"--resume", named, "--freeze", "fc1.*"}, {named, "'fc1.bias'"}},
      {run_of(9) + Words{"--resume", named, "--optimizer", "sgd"}, {named, "adamw", "exp_avg"}},
      {run_of(9) + Words{"--resume", runs / "nowhere"}, {runs / "nowhere", "found nothing"}},
      {run_of(9) + Words{"--resume", runs.dir()}, {runs.dir(), "manifest.json"}},
      {run_of(9) + Words{"--resume", "latest"}, {"--checkpoint-dir"}},
      {run_of(9) + Words{"--resume", other.model()}, {other.model(), "graph"}},
      {run_of(9) + Words{"--keep-best", "loss", "--eval-data", "none"} + runs.saving(),
       {"--keep-best", "evaluation"}},
  };
  for (const auto& [words, facts] : all) {
    SCOPED_TRACE(format_text("{}", joined(words, " ")));
    const Finished run = Program::run(words);
    EXPECT_EQ(run.status, 2);
    expect_one_line(run.err, facts);
  }
}

TEST(ForeignCheckpointTest, AFolderHasOneWriter) {
  const CheckpointRuns runs;
  Program first(run_of(100000000) + runs.saving() + Words{"--log-interval", "1"});
  ASSERT_TRUE(first.until_output("step 3/", 30)) << first.err();
  const Finished second = Program::run(run_of(9) + runs.saving());
  EXPECT_EQ(second.status, 2);
  expect_one_line(second.err, {runs.dir(), "another run"});
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait(20).status, 128 + SIGTERM) << first.err();
  const Words taken = runs.saving() + Words{"--overwrite-checkpoints", "on"};
  EXPECT_EQ(Program::run(run_of(9) + taken).status, 0) << "the lock is gone with it";
}

}  // namespace bad_checkpoint_test
}  // namespace ofsdp
