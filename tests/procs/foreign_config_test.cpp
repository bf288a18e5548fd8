// Every file in tests/fixtures/accelerate and tests/fixtures/deepspeed given to the real command:
// it runs with the file's strategy and ranks, with warnings once a run, or is refused in one
// line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/comm/store/stream_socket.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace foreign_config_test {

using testing::HasSubstr;

struct Given {
  std::string file;
  int status;
  std::string line;     // on stdout; on stderr when it is refused
  size_t warnings = 1;  // lines on stderr in a run
};

void PrintTo(const Given& given, std::ostream* out) { *out << given.file; }

// The model has no blocks of a class, so the graph replaces the file's classes. The run saves:
// files name a kind of checkpoint.
Words run_of(const std::string& file, const testing_data::TempFolder& folder) {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--steps", "2",
                   "--batch-size", "3", "--wrap-layers", "auto", "--checkpoint-dir",
                   folder.path() + "/checkpoints", "--config", fixture(file)});
}

class ForeignFileTest : public testing::TestWithParam<Given> {};

TEST_P(ForeignFileTest, RunsOrIsRefused) {
  const Given& given = GetParam();
  const testing_data::TempFolder folder;
  const Finished run = Program::run(run_of(given.file, folder));
  EXPECT_EQ(run.status, given.status) << run.err;
  if (given.status != 0) return expect_one_line(run.err, {fixture(given.file), given.line});
  EXPECT_THAT(run.out, HasSubstr(given.line));
  EXPECT_EQ(lines_of(run.err).size(), given.warnings) << run.err;
  for (const std::string& line : lines_of(run.err)) {
    EXPECT_THAT(line, testing::StartsWith("fsdp-run: " + fixture("")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ForeignFileTest,
    testing::Values(
        Given{"accelerate/guide_2022_06.yaml", 0, "full_shard, 2 ranks", 2},
        Given{"accelerate/guide_2023_06.yaml", 0, "full_shard, 2 ranks", 3},
        Given{"accelerate/guide_2023_10.yaml", 0, "full_shard, 2 ranks", 3},
        Given{"accelerate/guide_2023_11.yaml", 0, "full_shard, 2 ranks", 3},
        Given{"accelerate/guide_2023_12.yaml", 0, "full_shard, 2 ranks", 3},
        Given{"accelerate/guide_2024_09.yaml", 0, "full_shard, 2 ranks", 2},
        Given{"accelerate/template.yaml", 0, "parameters and computation bfloat16"},
        Given{"accelerate/version_1.yaml", 0, "shard_grad_op, 3 ranks"},
        Given{"accelerate/version_2.yaml", 0, "shard_grad_op, 4 ranks"},
        Given{"accelerate/version_2_by_hand.yaml", 0, "full_shard, 2 ranks"},
        Given{"accelerate/version_2_mesh.yaml", 0, "hybrid_shard, 4 ranks"},
        Given{"accelerate/version_2_context_parallel.yaml", 2, "parallelism_config_cp_size"},
        Given{"accelerate/version_2_tensor_parallel.yaml", 2, "parallelism_config_tp_size"},
        Given{"accelerate/fp8.yaml", 2, "fp8 is not offered here"},
        Given{"accelerate/one_process.yaml", 0, "1 rank,"},
        Given{"accelerate/multi_cpu.yaml", 0, "no_shard, 4 ranks"},
        Given{"accelerate/unknown_key.yaml", 2, "did you mean 'mixed_precision'?"},
        Given{"accelerate/deepspeed_stage_2.yaml", 0, "shard_grad_op, 2 ranks"},
        Given{"accelerate/deepspeed_stage_3.yaml", 0, "--cpu-offload params: no effect"},
        Given{"accelerate/deepspeed_file.yaml", 0, "shard_grad_op, 2 ranks", 2},
        Given{"deepspeed/stage_2.json", 0, "parameters and computation float16"},
        Given{"deepspeed/stage_3_offload.json", 0, "--cpu-offload params: no effect"}),
    [](const auto& info) {
      std::string name = info.param.file;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

TEST(ForeignFileTest, NoFileIsLeftOut) {
  size_t files = 0;
  for (const char* folder : {"accelerate", "deepspeed"}) {
    for (const auto& entry : std::filesystem::directory_iterator(fixture(folder))) {
      files += entry.is_regular_file();
    }
  }
  EXPECT_EQ(files, 23u) << "22 above and everything.json, of tests/unit";
}

// Each rank reads the file; only the first prints the warnings.
TEST(ForeignFileTest, RanksOfAnotherLauncherWarnOnce) {
  const testing_data::TempFolder folder;
  const Words words = run_of("accelerate/version_2_by_hand.yaml", folder);
  Start first, second;
  const std::string port = format_text("MASTER_PORT={}", 20000 + getpid() % 20000);
  first.environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=localhost", port};
  second.environment = {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "MASTER_ADDR=localhost", port};
  Program zero(words, first);
  Program one(words, second);
  const Finished a = zero.wait(60), b = one.wait(60);
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(b.status, 0) << b.err;
  EXPECT_EQ(lines_of(a.err).size(), 1u) << a.err;
  EXPECT_EQ(b.err, "");
}

// As if srun starts one fsdp-run a host: the environment says that it is a rank.
TEST(ForeignFileTest, ALauncherThatSlurmCallsARankLeavesTheWarningToItsRanks) {
  const testing_data::TempFolder folder;
  const Words meet = run_of("accelerate/version_2_by_hand.yaml", folder) +
                     Words{"--rdzv-endpoint", format_text("127.0.0.1:{}", free_port())};
  Start srun;
  srun.environment = {"SLURM_STEP_ID=0", "SLURM_JOB_ID=1",  "SLURM_NTASKS=2",
                      "SLURM_PROCID=0",  "SLURM_LOCALID=0", "SLURM_NODEID=0"};
  const Finished run = Program::run(meet, srun);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
}

TEST(ForeignFileTest, ALauncherOfOneRankLeavesTheWarningToIt) {
  const testing_data::TempFolder folder;
  const Words words = run_of("accelerate/version_2_by_hand.yaml", folder);
  const Finished run = Program::run(words + ranks(1) + Words{"--max-restarts", "1"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
}

}  // namespace foreign_config_test
}  // namespace ofsdp
