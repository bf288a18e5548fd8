// The planned bytes are the bytes: what the metrics call peak_bytes equals the plan, and the
// kernel's own account of the process (its proportional set size) grows by just that, so nothing
// that holds tensors was left out.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

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

// The proportional set size of each rank while the command is in its loop.
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

}  // namespace memory_test
}  // namespace ofsdp
