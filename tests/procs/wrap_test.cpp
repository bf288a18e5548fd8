// Units change where parameters lie and when they move, not the results: every --wrap follows the
// same trajectory, to rounding, on any number of ranks and under every strategy.
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/comm/store/stream_socket.h"
#include "tests/procs/on_hosts.h"
#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace wrap_test {

using testing_data::TempFolder;

const std::string kDecoder = OFSDP_SOURCE_DIR "/tests/oracle/cases/decoder/";

struct Trained {
  std::vector<double> losses;
  std::string out;
};

Trained train(const Words& words) {
  const TempFolder folder;
  const std::string metrics = folder.path() + "/m.jsonl";
  const Finished run =
      Program::run(fsdp_run({kDecoder + "dynamo.onnx", "--loss", "cross_entropy", "--no-shuffle",
                             "--global-batch-size", "8", "--clip-grad-norm", "1", "--metrics",
                             metrics, "--verbose"}) +
                   words);
  EXPECT_EQ(run.status, 0) << run.err;
  return {losses_of(metrics), run.out};
}

class WrapTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Worlds, WrapTest, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param) + "_ranks"; });

TEST_P(WrapTest, EveryPolicyFollowsTheSameTrajectory) {
  const std::vector<std::pair<Words, std::string>> policies = {
      {{"--wrap", "none"}, "1 unit"},
      {{"--wrap", "transformer"}, "4 units"},
      {{"--wrap", "size", "--min-params", "1"}, "20 units"},
      {{"--wrap", "size", "--min-params", "3000"}, "3 units"},
      {{"--wrap-layers", "Block,n"}, "5 units"},
      {{"--wrap-layers", "h.*.mlp"}, "4 units"}};
  const std::vector<double> expected = train(policies[0].first).losses;
  ASSERT_EQ(expected.size(), 10u);
  for (const auto& [policy, units] : policies) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
      const Trained found = train(policy + ranks(GetParam()) + Words{"--strategy", strategy});
      EXPECT_NE(found.out.find(units), std::string::npos) << units << "\n" << found.out;
      ASSERT_EQ(found.losses.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(found.losses[i], expected[i], 2e-6 * expected[i])
            << policy[1] << " " << strategy << ", step " << i + 1;
      }
    }
  }
}

// `plan --verbose` has the table of units.
TEST(Wrap, PlanPrintsTheUnits) {
  const Finished run = Program::run(
      fsdp_run({"plan", kDecoder + "legacy.onnx", "--loss", "cross_entropy", "--verbose"}) +
      ranks(2));
  EXPECT_EQ(run.status, 0) << run.err;
  for (const char* line :
       {"u0    h.0      12         2,224  8.69 KiB         2,240         1,120    12\n",
        "u1    h.1      12         2,224  8.69 KiB         2,240         1,120    12\n",
        "u2    h.2      12         2,224  8.69 KiB         2,240         1,120    12\n",
        "u3    root      3           512  2.00 KiB           512           256     5\n"}) {
    EXPECT_NE(run.out.find(line), std::string::npos) << line;
  }
}

TEST(Wrap, AnUnknownLayerIsRefused) {
  const Finished run = Program::run(
      fsdp_run({kDecoder + "dynamo.onnx", "--loss", "cross_entropy", "--wrap-layers", "Blokc"}) +
      ranks(2));
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("--wrap-layers Blokc"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("did you mean 'Block'?"), std::string::npos) << run.err;
}

// --- --wrap auto and --keep-gathered

Words gpt(const std::string& wrap, int world) {
  return fsdp_run({sample_model("gpt/gpt.onnx"), "--global-batch-size", "4", "--steps", "2",
                   "--clip-grad-norm", "off", "--wrap", wrap, "--threads", "1"}) +
         ranks(world);
}

std::string trained_file(const Words& words, std::string* out = nullptr) {
  const TempFolder folder;
  const std::string path = folder.path() + "/trained.onnx";
  const Finished run = Program::run(words + Words{"--output", path});
  EXPECT_EQ(run.status, 0) << run.err;
  if (out != nullptr) *out = run.out;
  return onnx_bytes::content(path);
}

// Units of any size, and recomputation, give the same bits if no norm covers them.
TEST(WrapAuto, TrainsTheSameBitsAndSaysWhatItTook) {
  const std::string blocks = trained_file(gpt("transformer", 2));
  std::string out;
  EXPECT_EQ(trained_file(gpt("auto", 2), &out), blocks);
  EXPECT_NE(out.find("wrap auto: --wrap "), std::string::npos) << out;
  // A limit that no policy keeps.
  const Words limited = gpt("auto", 2) + Words{"--memory-limit", "10000000"};
  EXPECT_EQ(trained_file(limited, &out), blocks);
  EXPECT_NE(out.find("--activation-checkpointing auto"), std::string::npos);
  for (const char* wrap : {"transformer", "size", "none"}) {
    const Finished run = Program::run(gpt(wrap, 2) + Words{"--memory-limit", "10000000"});
    EXPECT_EQ(run.status, 2) << wrap << run.out;
  }
}

TEST(WrapAuto, ExplainListsThePlansThatWereCompared) {
  Words words = gpt("auto", 2) + Words{"--explain"};
  words.insert(words.begin() + 1, "plan");
  const Finished run = Program::run(words);
  EXPECT_EQ(run.status, 0) << run.err;
  for (const char* text :
       {"wrap auto compares plans", "--wrap none", "  taken\n", "\nkernels:\n"}) {
    EXPECT_NE(run.out.find(text), std::string::npos) << text << "\n" << run.out;
  }
}

// Ranks on two hosts gather units over a socket.
TEST(KeepGathered, TrainsTheSameBits) {
  const auto trained = [](const Words& more) {
    const TempFolder folder;
    const std::string path = folder.path() + "/trained.onnx";
    const int port = free_port();
    std::vector<std::unique_ptr<Running>> hosts;
    const Words words = fsdp_run({kDecoder + "dynamo.onnx", "--loss", "cross_entropy", "--timeout",
                                  "20", "--threads", "1", "--output", path}) +
                        more;
    for (const int rank : {0, 1}) {
      hosts.push_back(std::make_unique<Running>(
          format_text("host-{}", rank), variables(rank, 2, "127.0.0.1", port) + line_of(words)));
    }
    for (const auto& host : hosts) EXPECT_EQ(host->wait(), 0) << host->said();
    return read_text(path);
  };
  const std::string again = trained({});
  EXPECT_FALSE(again.empty());
  EXPECT_EQ(trained({"--keep-gathered", "1"}), again);
  EXPECT_EQ(trained({"--keep-gathered", "9", "--grad-accum", "2", "--prefetch-depth", "3"}),
            trained({"--grad-accum", "2"}));
}

}  // namespace wrap_test
}  // namespace ofsdp
