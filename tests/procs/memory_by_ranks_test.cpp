// Memory of 16 equal blocks and a small root on 1, 2, 4 and 8 ranks, from the table that
// `fsdp-run plan` prints, and against what a run holds.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace memory_by_ranks_test {

using testing_data::TempFolder;

constexpr int64_t kBlock = 64 * 64, kRoot = 8 * 64;  // divide by 8 ranks without padding
constexpr int64_t kFloat = 4, kBlocks = 16;

Words blocks(const std::string& command, int world, const std::string& strategy) {
  Words words = fsdp_run(command.empty() ? Words{} : Words{command});
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

// The rows of the table of bytes: what stands before the number -> the number.
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

// Ranks of one host read each other's shards where they lie.
TEST_P(MemoryByRanks, FullShardHoldsItsPart) {
  const int64_t n = GetParam();
  auto rows = planned(GetParam(), "full_shard");
  const int64_t whole = (kBlocks * kBlock + kRoot) * kFloat;
  EXPECT_EQ(rows["parameters (owned)"], whole / n);
  EXPECT_EQ(rows["optimizer state"], 2 * whole / n);
  // Slots of two units at a time: while one is reduced, the next is written.
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

}  // namespace memory_by_ranks_test
}  // namespace ofsdp
