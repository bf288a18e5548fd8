// Command lines as in tutorials for PyTorch, Accelerate, Transformers and DeepSpeed, with a model
// in place of the script and its arguments: each starts a run. And a hosts file, with a transport
// that stays on this host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/await_meeting.h"
#include "tests/support/data_files.h"
#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace launch_words_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_data::TempFolder;

// PORT is a free port, MODEL the model with `ours`. `write_files` makes the files.
const std::vector<std::string> kOneHost = {
    // PyTorch: FSDP and DDP tutorials, torchrun's own documentation
    "torchrun --nproc_per_node 2 MODEL",
    "torchrun --nnodes 1 --nproc_per_node 4 MODEL",
    "torchrun --standalone --nproc_per_node=4 MODEL",
    "torchrun --standalone --nnodes=1 --nproc-per-node=2 MODEL",
    "torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=2 MODEL",
    "torchrun --nnodes=1 --nproc_per_node=2 --rdzv_id=105 --rdzv_endpoint=0.0.0.0:PORT MODEL",
    "torchrun --nproc_per_node=4 --nnodes=1 --node_rank=0 --master_addr=localhost "
    "--master_port=1234 MODEL",
    "torchrun --nnodes=1 --nproc-per-node=2 --max-restarts=3 --rdzv-id=7 --rdzv-backend=c10d "
    "--rdzv-endpoint=localhost:PORT MODEL",
    "torchrun --nproc_per_node=2 --num_machines=1 MODEL",
    "python -m torch.distributed.launch --use_env --nproc_per_node=2 MODEL",
    "python -m torch.distributed.run --nproc_per_node=2 MODEL",
    // Accelerate: launch tutorial, FSDP and DeepSpeed guides
    "accelerate launch MODEL",
    "accelerate launch --multi_gpu MODEL",
    "accelerate launch --num_processes=2 MODEL",
    "accelerate launch --multi_gpu --mixed_precision=fp16 --num_processes=2 MODEL",
    "python -m accelerate.commands.launch --num_processes=2 MODEL",
    "python -u -m accelerate.commands.launch --num_processes=2 MODEL",
    "accelerate launch --cpu MODEL",
    "accelerate launch --config_file fsdp.yaml MODEL",
    "accelerate launch MODEL --mixed_precision fp16",
    "accelerate launch --use_fsdp --num_processes 2 --mixed_precision bf16 "
    "--fsdp_sharding_strategy FULL_SHARD --fsdp_auto_wrap_policy SIZE_BASED_WRAP "
    "--fsdp_min_num_params 2000 --fsdp_state_dict_type SHARDED_STATE_DICT "
    "--fsdp_backward_prefetch BACKWARD_PRE --fsdp_forward_prefetch false "
    "--fsdp_offload_params false --fsdp_use_orig_params true "
    "--fsdp_cpu_ram_efficient_loading true --fsdp_sync_module_states true MODEL",
    "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true MODEL",
    "accelerate launch --use_deepspeed --zero_stage=2 --num_processes=2 "
    "--gradient_accumulation_steps=1 --gradient_clipping=1.0 --zero3_init_flag=true MODEL",
    "accelerate launch --config_file=deepspeed.yaml --num_processes=2 MODEL",
    "accelerate launch --use_deepspeed --deepspeed_config_file ds_config.json MODEL",
    // Transformers
    "accelerate launch --fsdp=full_shard --fsdp_config=fsdp_config.json MODEL",
    "torchrun --nproc_per_node=2 MODEL --deepspeed ds_config.json",
    // DeepSpeed: getting started, ZeRO
    "deepspeed MODEL --deepspeed --deepspeed_config ds_config.json",
    "deepspeed --num_nodes=2 MODEL --deepspeed --deepspeed_config ds_config.json",
    "deepspeed --num_gpus=2 MODEL --deepspeed --deepspeed_config ds_zero_stage_1.config",
    "deepspeed --num_gpus=2 MODEL --deepspeed_config ds_zero_stage_2.config",
    "deepspeed --num_gpus=2 MODEL --deepspeed_config zero_infinity.json",
    "deepspeed --num_gpus=8 MODEL --deepspeed_config zero_plus_plus.json",
    "deepspeed --include localhost:0,1 MODEL",
};

Words split(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

class LaunchWordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write(*this / "fsdp.yaml",
          "compute_environment: LOCAL_MACHINE\ndeepspeed_config: {}\ndistributed_type: FSDP\n"
          "downcast_bf16: 'no'\nfsdp_config:\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
          "  fsdp_backward_prefetch_policy: BACKWARD_PRE\n  fsdp_offload_params: false\n"
          "  fsdp_sharding_strategy: 1\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
          "machine_rank: 0\nmain_process_ip: null\nmain_process_port: null\n"
          "main_training_function: main\nmixed_precision: 'no'\nnum_machines: 1\n"
          "num_processes: 2\nuse_cpu: false\n");
    write(*this / "two.yaml",
          "distributed_type: MULTI_CPU\nnum_machines: 2\nnum_processes: 4\nmachine_rank: 0\n"
          "main_process_ip: 127.0.0.1\nmain_process_port: 1\nmixed_precision: 'no'\n");
    write(*this / "deepspeed.yaml",
          "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n gradient_accumulation_steps: 1\n"
          " gradient_clipping: 1.0\n offload_optimizer_device: none\n"
          " offload_param_device: none\n zero3_init_flag: true\n zero_stage: 2\n"
          "distributed_type: DEEPSPEED\nmixed_precision: fp16\nnum_machines: 1\n"
          "num_processes: 2\n");
    write(*this / "ds_config.json",
          R"({"train_batch_size": 8, "gradient_accumulation_steps": 1,
              "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
              "fp16": {"enabled": true}, "zero_optimization": true})");
    write(*this / "ds_zero_stage_1.config",
          R"({"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}})");
    write(*this / "ds_zero_stage_2.config",
          R"({"zero_optimization": {"stage": 2, "contiguous_gradients": true,
              "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 5e8,
              "allgather_bucket_size": 5e8}})");
    write(*this / "zero_infinity.json",
          R"({"zero_optimization": {"stage": 3, "contiguous_gradients": true,
              "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
              "stage3_prefetch_bucket_size": 1e7, "stage3_param_persistence_threshold": 1e5,
              "reduce_bucket_size": 1e7, "sub_group_size": 1e9,
              "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}})");
    write(*this / "zero_plus_plus.json",
          R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
              "zero_quantized_weights": true, "zero_hpz_partition_size": 8,
              "zero_quantized_gradients": true, "contiguous_gradients": true}})");
    write(*this / "fsdp_config.json",
          R"({"backward_prefetch": "backward_pre", "forward_prefetch": "false",
              "use_orig_params": "true"})");
    write(*this / "rsh", "#!/bin/sh\necho \"$1\" >> rsh.log\nexec /bin/sh -c \"$2\"\n");
    std::filesystem::permissions(*this / "rsh", std::filesystem::perms::owner_all);
  }

  std::string operator/(const std::string& name) const { return folder_.path() + "/" + name; }

  Words ours() const {
    return {fixture("mlp/model.onnx"),
            "--loss",
            "cross_entropy",
            "--steps",
            "1",
            "--metrics",
            "m.jsonl",
            "--threads",
            "1"};
  }

  // The whole line, in fsdp-run's words.
  Words command(const std::string& line) const {
    Words words;
    for (std::string word : split(line)) {
      if (word == "MODEL") {
        words = words + ours();
        continue;
      }
      if (const size_t at = word.find("PORT"); at != std::string::npos) {
        word.replace(at, 4, std::to_string(free_port()));
      }
      words.push_back(word);
    }
    return fsdp_run(words);
  }

  Start here() const {
    return {.environment = {"HF_HOME=" + folder_.path() + "/hf"}, .folder = folder_.path()};
  }
  Finished run(const Words& words) const { return Program::run(words, here()); }

  TempFolder folder_;
};

TEST_F(LaunchWordsTest, EveryLineOfTheTutorialsStarts) {
  for (const std::string& line : kOneHost) {
    std::filesystem::remove(*this / "m.jsonl");
    const Finished done = run(command(line));
    EXPECT_EQ(done.status, 0) << line << "\n" << done.err;
    EXPECT_EQ(rows_of(*this / "m.jsonl", "end").size(), 1u) << line;
  }
}

TEST_F(LaunchWordsTest, TwoHostsOfTorchrunAndOfAccelerateMeet) {
  for (const std::string line :
       {"torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id=100 --rdzv_backend=c10d "
        "--rdzv_endpoint=127.0.0.1:PORT --node_rank=RANK MODEL",
        "torchrun --nproc_per_node=2 --nnodes=2 --node_rank=RANK --master_addr=127.0.0.1 "
        "--master_port=PORT MODEL",
        "accelerate launch --config_file two.yaml --machine_rank RANK --main_process_port PORT "
        "MODEL",
        "accelerate launch --num_machines 2 --num_processes 4 --machine_rank RANK "
        "--main_process_ip 127.0.0.1 --main_process_port PORT --same_network "
        "--rdzv_backend static MODEL"}) {
    const std::string port = std::to_string(free_port());
    const auto node = [&](const char* rank) {
      std::string own = line;
      own.replace(own.find("PORT"), 4, port);
      own.replace(own.find("RANK"), 4, rank);
      return command(own);
    };
    Program first(node("0"), here());
    await_meeting(std::stoi(port));
    const Finished second = run(node("1"));
    EXPECT_EQ(first.wait(60).status, 0) << line << "\n" << first.err();
    EXPECT_EQ(second.status, 0) << line << "\n" << second.err;
  }
}

// accelerate config without questions, and a launch that finds the file by itself.
TEST_F(LaunchWordsTest, AccelerateConfigWritesWhatLaunchReads) {
  EXPECT_EQ(run(fsdp_run({"accelerate", "config", "default", "--mixed_precision", "bf16"})).status,
            0);
  EXPECT_TRUE(std::filesystem::exists(*this / "hf/accelerate/default_config.yaml"));
  EXPECT_EQ(run(fsdp_run({"accelerate", "config", "--config_file", "mine.yaml"})).status, 0);
  EXPECT_TRUE(std::filesystem::exists(*this / "mine.yaml"));
  write(*this / "hf/accelerate/default_config.yaml", "distributed_type: NO\nno_such_key: 1\n");
  const Finished found = run(command("accelerate launch MODEL"));
  EXPECT_EQ(found.status, 2);
  EXPECT_THAT(found.err, HasSubstr("default_config.yaml line 2: unknown key 'no_such_key'"));
}

TEST_F(LaunchWordsTest, WordsWithoutEffectAreOneWarningAndOthersAreRefused) {
  const Finished done = run(command("torchrun --log-dir logs --tee 3 --nproc-per-node 2 MODEL"));
  EXPECT_EQ(done.status, 0);
  EXPECT_EQ(done.err,
            "fsdp-run: command line: known to torchrun, Accelerate or DeepSpeed, without effect "
            "here: --log-dir, --tee\n");
  for (const auto& [line, expected] :
       {std::pair("torchrun --rdzv_backend etcd MODEL",
                  "--rdzv_backend: expected c10d or static, which need no server, found 'etcd'"),
        std::pair("accelerate launch --tpu MODEL", "--tpu: not offered here"),
        std::pair("torchrun --standalone --nnodes 2 MODEL", "--standalone contradicts --nnodes"),
        std::pair("accelerate launch --fsdp half_shard MODEL",
                  "fsdp-run train: expected one MODEL.onnx"),
        std::pair("accelerate launch --fsdp=half_shard MODEL", "--fsdp: expected full_shard"),
        std::pair("accelerate launch --mixed_precision fp8 MODEL", "--mixed_precision: fp8 is"),
        std::pair("deepspeed --exclude worker-2:0 MODEL", "--exclude: expected a --hostfile")}) {
    const Finished refused = run(command(line));
    EXPECT_EQ(refused.status, 2) << line;
    EXPECT_THAT(refused.err, HasSubstr(expected)) << line;
  }
}

class HostfileTest : public LaunchWordsTest {
 protected:
  void SetUp() override {
    LaunchWordsTest::SetUp();
    write(*this / "myhostfile", "# two workers\nworker-1 slots=2\n\nworker-2 slots=2\n");
  }
  // The run uses this test's transport and meets on this host.
  Words with_rsh(const std::string& line) const {
    return command(line) + Words{"--rsh", *this / "rsh", "--rdzv-endpoint",
                                 format_text("127.0.0.1:{}", free_port())};
  }
  std::string reached() const {
    std::ifstream log(*this / "rsh.log");
    std::vector<std::string> hosts{std::istream_iterator<std::string>(log), {}};
    std::ranges::sort(hosts);
    return joined(hosts, " ");
  }
};

TEST_F(HostfileTest, OneLauncherAHostTrainsTheBitsOfOneHost) {
  EXPECT_EQ(run(command("--nproc-per-node 2 MODEL --output one.onnx")).status, 0);
  const Finished hosts = run(
      with_rsh("deepspeed --hostfile=myhostfile --num_gpus=1 MODEL --deepspeed --output two.onnx"));
  EXPECT_EQ(hosts.status, 0) << hosts.err;
  EXPECT_EQ(hosts.err, "");
  EXPECT_EQ(reached(), "worker-1 worker-2");
  EXPECT_EQ(rows_of(*this / "m.jsonl", "end").at(0).at("peak_bytes").size(), 2u);
  EXPECT_TRUE(onnx_bytes::content(*this / "one.onnx") == onnx_bytes::content(*this / "two.onnx"));
}

// The folder keeps the typed words, not the words for one host.
TEST_F(HostfileTest, ResumeStartsAllHostsAgain) {
  const Finished kept =
      run(with_rsh("deepspeed --hostfile=myhostfile --num_gpus=1 MODEL --run-dir "
                   "kept --run-name x --steps 3"));
  ASSERT_EQ(kept.status, 0) << kept.err;
  std::filesystem::remove(*this / "rsh.log");
  const Finished resumed = run(fsdp_run({"resume", "kept/x", "--steps", "5"}));
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(reached(), "worker-1 worker-2");
  const auto end = rows_of(*this / "m.jsonl", "end").at(1);
  EXPECT_EQ(end.at("steps"), 5);
  EXPECT_EQ(end.at("peak_bytes").size(), 2u);
}

TEST_F(HostfileTest, FiltersChooseHostsAndSlots) {
  for (const auto& [filter, reached_hosts, world] :
       {std::tuple("--exclude=worker-2:0", "worker-1 worker-2", 3u),
        std::tuple("--include=worker-2:0,1", "worker-2", 2u),
        std::tuple("--num_nodes=1 --num_gpus=1", "worker-1", 1u)}) {
    std::filesystem::remove(*this / "rsh.log");
    const std::string line = format_text("deepspeed --hostfile=myhostfile {} MODEL", filter);
    const Finished done = run(with_rsh(line));
    EXPECT_EQ(done.status, 0) << filter << "\n" << done.err;
    EXPECT_EQ(reached(), reached_hosts) << filter;
    EXPECT_EQ(rows_of(*this / "m.jsonl", "end").at(0).at("peak_bytes").size(), world) << filter;
  }
  const Finished plan =
      run(fsdp_run({"plan", fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--hostfile",
                    "myhostfile", "--exclude", "worker-2:0", "--verbose"}));
  EXPECT_THAT(plan.out, HasSubstr("world 3")) << plan.err;
}

TEST_F(HostfileTest, WithoutSshEachHostStartsByItself) {
  const int port = free_port();
  const auto node = [&](int rank) {
    return command(
        format_text("deepspeed --hostfile=myhostfile --no_ssh --node_rank={} "
                    "--master_addr=127.0.0.1 --master_port={} MODEL",
                    rank, port));
  };
  Program first(node(0), here());
  await_meeting(port);
  const Finished second = run(node(1));
  EXPECT_EQ(first.wait(60).status, 0) << first.err();
  EXPECT_EQ(second.status, 0) << second.err;
}

TEST_F(HostfileTest, FailuresAreOneLine) {
  write(*this / "bad", "worker-1 slots=2\nworker-1 slots=4\n");
  EXPECT_THAT(run(command("--hostfile bad MODEL")).err,
              HasSubstr("bad line 2: the host worker-1 stands here twice"));
  write(*this / "bad", "worker-1 slots=two\n");
  EXPECT_THAT(run(command("--hostfile bad MODEL")).err,
              HasSubstr("bad line 1: expected HOST slots=N with N from 1 to 4096, found"));
  write(*this / "bad", "-oProxyCommand=evil slots=1\n");
  EXPECT_EQ(run(command("--hostfile bad MODEL")).status, 2);
  write(*this / "rsh", "#!/bin/sh\ntest $1 = worker-1 && exit 255\nexec /bin/sh -c \"$2\"\n");
  const Finished lost = run(with_rsh("--hostfile myhostfile MODEL"));
  EXPECT_EQ(lost.status, 1);
  EXPECT_THAT(lost.err, AllOf(HasSubstr("host worker-1"), HasSubstr("ended with status 255")));
  EXPECT_LT(lost.seconds, 20);  // not the meeting's timeout
}

TEST_F(HostfileTest, AHostWhoseCommandIsWrongEndsTheOthers) {
  write(*this / "rsh", "#!/bin/sh\ntest $1 = worker-2 && exit 2\nexec /bin/sh -c \"$2\"\n");
  const Finished wrong = run(with_rsh("--hostfile myhostfile MODEL"));
  EXPECT_EQ(wrong.status, 2) << wrong.err;
  EXPECT_LT(wrong.seconds, 30);
}

// A killed launcher cannot tell the hosts; they notice.
TEST_F(HostfileTest, HostsEndWithTheirLauncher) {
  const std::string mark = *this / "mark.jsonl";
  Words words = with_rsh("--hostfile myhostfile MODEL --log-interval 1");
  words = words + Words{"--steps", "100000000", "--metrics", mark, "--epochs", "none"};
  Program program(words, here());
  ASSERT_TRUE(program.until_output("step 20", 30)) << program.err();
  program.signal(SIGKILL);
  program.wait(5);
  EXPECT_TRUE(holds_within(20, [&] { return processes_with(mark).empty(); }));
}

}  // namespace launch_words_test
}  // namespace ofsdp
