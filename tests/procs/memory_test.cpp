// The planned bytes are the bytes: peak_bytes in the metrics equals the plan. The kernel's count
// for the process (proportional set size) grows by exactly that, so no memory for tensors was left
// out.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace memory_test {

double pss_bytes(pid_t pid) {
  std::ifstream rollup("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string word;
  double kib = 0;
  while (rollup >> word) {
    if (word == "Pss:" && rollup >> kib) return kib * 1024;
  }
  return 0;
}

// Each rank's proportional set size while the command is in the loop.
std::vector<double> pss_in_the_loop(const Words& command) {
  Program program(command);
  EXPECT_TRUE(program.until_output("step 3", 60)) << program.err();
  std::vector<double> bytes;
  for (pid_t rank : children_of(program.pid())) bytes.push_back(pss_bytes(rank));
  program.signal(SIGKILL);
  program.wait(10);
  return bytes;
}

Words mnist(int batch, int steps) {
  return fsdp_run({sample_model("mnist/mnist.onnx"), "--data", "synthetic", "--log-interval", "1",
                   "--nproc-per-node", "2", "--threads", "1", "--batch-size", std::to_string(batch),
                   "--steps", std::to_string(steps)});
}

std::vector<nlohmann::json> metrics_of(const Words& command) {
  const testing_data::TempFolder folder;
  const Finished run = Program::run(command + Words{"--metrics", folder.path() + "/m.jsonl"});
  EXPECT_EQ(run.status, 0) << run.err;
  return rows_of(folder.path() + "/m.jsonl");
}

TEST(Memory, PeakIsThePlanToTheByteUnderEveryStrategy) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const char* accum : {"1", "2"}) {
      const auto rows = metrics_of(mlp() + ranks(3) +
                                   Words{"--strategy", strategy, "--grad-accum", accum,
                                         "--batch-size", "5", "--epochs", "2", "--min-params",
                                         "1000", "--eval-data", fixture("mlp/data")});
      ASSERT_FALSE(rows.empty());
      const auto& end = rows.back();
      EXPECT_EQ(end.at("peak_bytes").size(), 3u);
      EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes")) << strategy << " " << accum;
      EXPECT_EQ(rows.front().at("peak_bytes"), end.at("peak_bytes")[0])
          << "all is there before step one";
    }
  }
}

TEST(Memory, ShardedStatesFallWithTheNumberOfRanks) {
  double last = HUGE_VAL;
  for (int world : {1, 2, 4}) {
    const Words run =
        fsdp_run({sample_model("mnist/mnist.onnx"), "--data", "synthetic", "--batch-size", "1",
                  "--steps", "1", "--threads", "1", "--nproc-per-node", std::to_string(world)});
    const double peak = metrics_of(run).back().at("peak_bytes")[0].get<double>();
    EXPECT_LT(peak, last) << world;
    last = peak;
  }
}

TEST(Memory, ProportionalSetSizeGrowsByThePlan) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' shadow memory counts too";
#endif
  const double planned = metrics_of(mnist(448, 1)).back().at("planned_peak_bytes")[0].get<double>();
  ASSERT_GT(planned, 150e6) << "large against the room below";
  const auto small = pss_in_the_loop(mnist(1, 100000));
  const double small_planned =
      metrics_of(mnist(1, 1)).back().at("planned_peak_bytes")[0].get<double>();
  const auto large = pss_in_the_loop(mnist(448, 100000));
  ASSERT_EQ(small.size(), 2u);
  ASSERT_EQ(large.size(), 2u);
  for (size_t rank = 0; rank < 2; ++rank) {
    const double growth = large[rank] - (small[rank] - small_planned);
    EXPECT_NEAR(growth, planned, 48.0 * (1 << 20) + 0.02 * planned) << "rank " << rank;
    EXPECT_LT(small[rank], small_planned + 48.0 * (1 << 20)) << "what is no tensor is small";
  }
}

// --- 16 equal blocks and a small root on 1, 2, 4 and 8 ranks: the table of `fsdp-run plan` ---

using testing_data::TempFolder;

constexpr int64_t kBlock = 64 * 64, kRoot = 8 * 64;  // divide by 8 ranks without padding
constexpr int64_t kFloat = 4, kBlocks = 16;

Words blocks(const std::string& command, int world, const std::string& strategy) {
  Words words = fsdp_run(command.empty() ? Words{} : Words{command, "--verbose"});
  return words +
         Words{fixture("blocks/model.onnx"),
               "--data",
               "synthetic",
               "--loss",
               "cross_entropy",
               "--batch-size",
               "4",
               "--steps",
               "2",
               "--strategy",
               strategy} +
         ranks(world);
}

// The rows in the table of bytes: the text before the number -> the number.
std::map<std::string, int64_t> planned(int world, const std::string& strategy) {
  const Finished plan = Program::run(blocks("plan", world, strategy));
  EXPECT_EQ(plan.status, 0) << plan.err;
  std::istringstream lines(plan.out.substr(plan.out.find("memory of this rank")));
  std::map<std::string, int64_t> rows;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    const size_t last = line.find_last_of(' ');
    rows[line.substr(0, line.find("  "))] = std::stoll(line.substr(last + 1));
  }
  return rows;
}

class MemoryByRanks : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Worlds, MemoryByRanks, testing::Values(1, 2, 4, 8),
                         [](const auto& info) { return std::to_string(info.param) + "_ranks"; });

// Ranks on one host read each other's shards in place.
TEST_P(MemoryByRanks, FullShardHoldsItsPart) {
  const int64_t n = GetParam();
  auto rows = planned(GetParam(), "full_shard");
  const int64_t whole = (kBlocks * kBlock + kRoot) * kFloat;
  EXPECT_EQ(rows["parameters (owned)"], whole / n);
  EXPECT_EQ(rows["optimizer state"], 2 * whole / n);
  // Two slots at a time: while one unit is reduced, the next is written.
  EXPECT_LE(rows["gradients (slots, shards)"], 2 * kBlock * kFloat + kRoot * kFloat);
  const Finished plan = Program::run(blocks("plan", GetParam(), "full_shard"));
  EXPECT_NE(plan.out.find("gathered 0"), std::string::npos) << plan.out;
}

TEST_P(MemoryByRanks, FullShardOfSeveralHostsHoldsItsPartAndTwoUnits) {
  const TempFolder folder;
  const std::string hosts = folder.path() + "/hosts.yaml";
  std::ofstream(hosts) << format_text(
      "hosts: {}\nranks_per_host: 1\ninside: {{alpha_us: 1, beta_gbs: 9}}\n"
      "between: {{alpha_us: 9, beta_gbs: 1}}\n",
      GetParam());
  const Finished plan =
      Program::run(blocks("plan", GetParam(), "full_shard") +
                   Words{"--world", std::to_string(GetParam()), "--topology", hosts});
  const int64_t gathered = GetParam() == 1 ? 0 : 2 * kBlock * kFloat;
  EXPECT_NE(plan.out.find(format_text("gathered {}", gathered)), std::string::npos) << plan.out;
}

TEST_P(MemoryByRanks, NoShardHoldsAll) {
  auto rows = planned(GetParam(), "no_shard");
  const int64_t whole = (kBlocks * kBlock + kRoot) * kFloat;
  EXPECT_EQ(rows["parameters (owned)"], whole);
  EXPECT_EQ(rows["optimizer state"], 2 * whole);
  EXPECT_EQ(rows["gradients (slots, shards)"], whole);
}

TEST_P(MemoryByRanks, Zero1SharesOutTheOptimizer) {
  auto rows = planned(GetParam(), "zero1");
  const int64_t whole = (kBlocks * kBlock + kRoot) * kFloat;
  EXPECT_EQ(rows["parameters (owned)"], whole);
  EXPECT_EQ(rows["optimizer state"], 2 * whole / GetParam());
}

TEST_P(MemoryByRanks, ARunHoldsWhatWasPlanned) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "zero1", "no_shard"}) {
    const TempFolder folder;
    const std::string metrics = folder.path() + "/metrics.jsonl";
    const Finished run =
        Program::run(blocks("", GetParam(), strategy) + Words{"--metrics", metrics});
    ASSERT_EQ(run.status, 0) << run.err;
    const auto end = rows_of(metrics).back();
    const std::vector<int64_t> peak = end["peak_bytes"];
    EXPECT_EQ(peak, end["planned_peak_bytes"].get<std::vector<int64_t>>()) << strategy;
    EXPECT_EQ(peak[0], planned(GetParam(), strategy)["peak, in whole pages"]) << strategy;
  }
}

}  // namespace memory_test
}  // namespace ofsdp
