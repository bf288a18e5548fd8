// Files from `accelerate config` (one for every guide of the FSDP pages since 2022, and one for
// each fsdp_version) and from DeepSpeed: the settings that we read, against the meaning in their
// documentation.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/cli/config/foreign/foreign_file.h"
#include "runtime/cli/options/option_table.h"
#include "tests/support/namespaces.h"
#include "tests/unit/options_testing.h"

namespace ofsdp {
namespace foreign_config_test {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kFixtures = OFSDP_SOURCE_DIR "/tests/fixtures/";

std::vector<std::string> lines_of_text(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The lines in the effective configuration that differ from the default.
std::vector<std::string> changed(const Options& options) {
  const std::vector<std::string> defaults = lines_of_text(describe(options_of({})));
  const std::set<std::string> before(defaults.begin(), defaults.end());
  std::vector<std::string> lines;
  for (const std::string& line : lines_of_text(describe(options))) {
    if (before.count(line) == 0) lines.push_back(line);
  }
  return lines;
}

struct Case {
  std::string file;
  std::vector<std::string> options;   // the file changed these
  std::vector<std::string> warnings;  // without the folder
  Words flags = {};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.file; }

std::string without_folder(std::string text, const std::string& folder = kFixtures) {
  for (size_t at = 0; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
  return text;
}

class Accepted : public testing::TestWithParam<Case> {};

TEST_P(Accepted, GivesTheseOptionsAndWarnings) {
  const Case& c = GetParam();
  const auto parsed = parse(Words{"m.onnx", "--config", kFixtures + c.file});
  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(changed(parsed->options), c.options);
  std::vector<std::string> warnings;
  for (const std::string& line : parsed->warnings) warnings.push_back(without_folder(line));
  EXPECT_EQ(warnings, c.warnings);
}

const std::string kPolicy =
    ": fsdp_config.fsdp_backward_prefetch_policy: Accelerate reads "
    "fsdp_backward_prefetch, and this key no more";
const std::string kNumber = ": a number is deprecated by Accelerate; FULL_SHARD says the same";
const std::string kUnused = ": known to Accelerate, without effect here: ";
const std::string kTop =
    "debug, downcast_bf16, main_training_function, rdzv_backend, same_network, "
    "tpu_env, tpu_use_cluster, tpu_use_sudo";
const std::string kTopCpu =
    "debug, downcast_bf16, enable_cpu_affinity, main_training_function, rdzv_backend, "
    "same_network, tpu_env, tpu_use_cluster, tpu_use_sudo";
const std::string kLoading = "fsdp_config.fsdp_cpu_ram_efficient_loading";
const std::string kThree =
    "fsdp_config.fsdp_use_orig_params, " + kLoading + ", fsdp_config.fsdp_sync_module_states";
const std::vector<std::string> kBf16 = {"param_dtype: bfloat16", "reduce_dtype: bfloat16",
                                        "buffer_dtype: bfloat16"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Case guide(const std::string& date, const std::string& prefetch) {
  const std::string at = "accelerate/guide_" + date + ".yaml";
  const bool number = date != "2024_09";
  std::vector<std::string> options = {"wrap_layers: [\"BertLayer\"]"};
  options = options + kBf16;
  if (!prefetch.empty()) options.push_back(prefetch);
  std::vector<std::string> warnings = {at + " line 7" + kPolicy};
  if (number) warnings.push_back(at + " line 11: fsdp_config.fsdp_sharding_strategy" + kNumber);
  return {at, options + Words{"nproc_per_node: 2"},
          warnings + Words{at + kUnused + kTop + ", " + kThree}};
}

Case early(const std::string& date, const std::string& layer) {
  const std::string at = "accelerate/guide_" + date + ".yaml";
  return {at,
          {"wrap_layers: [\"" + layer + "\"]", "nproc_per_node: 2", "checkpoint_type: full"},
          {at + " line 7" + kPolicy, at + " line 9: fsdp_config.fsdp_sharding_strategy" + kNumber,
           at + kUnused + "downcast_bf16, main_training_function"}};
}

INSTANTIATE_TEST_SUITE_P(
    Accelerate, Accepted,
    testing::Values(
        Case{"accelerate/guide_2022_06.yaml",
             {"min_params: 2000", "nproc_per_node: 2"},
             {"accelerate/guide_2022_06.yaml line 8: fsdp_config.sharding_strategy" + kNumber,
              "accelerate/guide_2022_06.yaml" + kUnused + "main_training_function"}},
        early("2023_06", "GPT2Block"), early("2023_10", "BertLayer"),
        guide("2023_11", "forward_prefetch: off"), guide("2023_12", ""),
        guide("2024_09", "forward_prefetch: off"),
        Case{"accelerate/template.yaml",
             kBf16 + Words{"forward_prefetch: off", "nproc_per_node: 2"},
             {"accelerate/template.yaml" + kUnused + kThree}},
        Case{"accelerate/version_1.yaml",
             {"strategy: shard_grad_op", "wrap: size", "min_params: 100000000",
              "param_dtype: float16", "reduce_dtype: float16", "buffer_dtype: float16",
              "activation_checkpointing: unit", "backward_prefetch: post", "nproc_per_node: 3",
              "checkpoint_type: local"},
             {"accelerate/version_1.yaml" + kUnused + kTopCpu + ", " + kThree}},
        Case{"accelerate/version_2.yaml",
             Words{"strategy: shard_grad_op", "wrap_layers: [\"BertLayer\"]"} + kBf16 +
                 Words{"nproc_per_node: 4"},
             {"accelerate/version_2.yaml" + kUnused + kTopCpu + ", " + kLoading}},
        Case{"accelerate/version_2_by_hand.yaml",
             Words{"wrap: none"} + kBf16 + Words{"nproc_per_node: 2", "checkpoint_type: full"},
             {"accelerate/version_2_by_hand.yaml" + kUnused +
              "fsdp_config.fsdp_use_orig_params, fsdp_config.fsdp_backward_prefetch, "
              "fsdp_config.fsdp_sync_module_states"}},
        Case{"accelerate/version_2_mesh.yaml",
             Words{"strategy: hybrid_shard", "shard_size: 2"} + kBf16 +
                 Words{"activation_checkpointing: unit", "nproc_per_node: 4"},
             {"accelerate/version_2_mesh.yaml" + kUnused + kTopCpu + ", " + kLoading}},
        Case{"accelerate/one_process.yaml",
             {},
             {"accelerate/one_process.yaml" + kUnused +
              "downcast_bf16, gpu_ids, main_training_function, megatron_lm_config, tpu_name"}},
        Case{"accelerate/multi_cpu.yaml",
             {"strategy: no_shard", "nproc_per_node: 4", "device: cpu"},
             {"accelerate/multi_cpu.yaml" + kUnused +
              "debug, downcast_bf16, main_training_function, mpirun_config"}}));

const std::string kUnusedZero =
    ": known to DeepSpeed, without effect here: fp16.loss_scale_window, fp16.initial_scale_power, "
    "fp16.hysteresis, fp16.min_loss_scale, zero_optimization.allgather_partitions, "
    "zero_optimization.overlap_comm, zero_optimization.reduce_scatter, "
    "zero_optimization.contiguous_gradients, wall_clock_breakdown, optimizer.params.torch_adam";
const std::vector<std::string> kStage2Alone = {"strategy: shard_grad_op", "param_dtype: float16",
                                               "reduce_dtype: float16", "buffer_dtype: float16"};
// 2e8 elements with two bytes each.
const std::vector<std::string> kStage2 = {"strategy: shard_grad_op", "bucket_mb: 381.4697265625",
                                          "param_dtype: float16", "reduce_dtype: float16",
                                          "buffer_dtype: float16"};

INSTANTIATE_TEST_SUITE_P(
    DeepSpeed, Accepted,
    testing::Values(
        Case{"deepspeed/stage_2.json",
             kStage2 + Words{"lr_schedule: linear", "total_steps: auto", "min_lr_ratio: 0",
                             "grad_accum: 1", "log_interval: 2000"},
             {"deepspeed/stage_2.json" + kUnusedZero}},
        Case{"accelerate/deepspeed_file.yaml",
             kStage2 + Words{"nproc_per_node: 2", "lr_schedule: linear", "total_steps: auto",
                             "min_lr_ratio: 0", "grad_accum: 1", "log_interval: 2000"},
             {"deepspeed/stage_2.json" + kUnusedZero,
              "accelerate/deepspeed_file.yaml" + kUnused +
                  "main_training_function, deepspeed_config.zero3_init_flag"}},
        Case{"accelerate/deepspeed_stage_2.yaml",
             kStage2Alone + Words{"nproc_per_node: 2", "clip_grad_norm: 1", "grad_accum: 2"},
             {"accelerate/deepspeed_stage_2.yaml" + kUnused +
              "main_training_function, deepspeed_config.zero3_init_flag"}},
        Case{"deepspeed/everything.json",
             {"strategy: zero1", "param_dtype: bfloat16", "reduce_dtype: bfloat16",
              "buffer_dtype: bfloat16", "activation_checkpointing: unit", "lr: 0.002",
              "weight_decay: 0.1", "betas: [0.8, 0.95]", "eps: 1e-07", "clip_grad_norm: 0.5",
              "lr_schedule: linear", "warmup_steps: 10", "total_steps: 100", "min_lr_ratio: 0",
              "batch_size: 8", "grad_accum: 2", "global_batch_size: 32", "drop_last: on",
              "log_interval: 5"},
             {"deepspeed/everything.json: known to DeepSpeed, without effect here: "
              "wall_clock_breakdown, activation_checkpointing.profile"}}));

class ForeignConfig : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / format_text("ofsdp-foreign-{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::string refused_file(const std::string& file) const {
    return without_folder(refusal({"m.onnx", "--config", kFixtures + file}));
  }
  std::string refused(const std::string& text, const std::string& name = "c.yaml") const {
    return without_folder(refusal({"m.onnx", "--config", write(name, text)}),
                          folder_.string() + "/");
  }
  // Only keys in fsdp_config.
  std::string fsdp(const std::string& keys) const { return refused("fsdp_config: {" + keys + "}"); }
  std::string ds(const std::string& keys) const { return refused("{" + keys + "}", "ds.json"); }
  std::vector<std::string> options(const std::string& text, const std::string& name = "c.yaml") {
    const auto parsed = parse(Words{"m.onnx", "--config", write(name, text)});
    EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message());
    return parsed.ok() ? changed(parsed->options) : Words{};
  }

  std::filesystem::path folder_;
};

TEST_F(ForeignConfig, FilesThatAskForMoreAreRefusedWithTheReason) {
  EXPECT_EQ(refused_file("accelerate/version_2_context_parallel.yaml"),
            "accelerate/version_2_context_parallel.yaml line 17: "
            "parallelism_config.parallelism_config_cp_size: data parallelism alone is offered: "
            "expected 1, found 8");
  EXPECT_EQ(refused_file("accelerate/version_2_tensor_parallel.yaml"),
            "accelerate/version_2_tensor_parallel.yaml line 20: "
            "parallelism_config.parallelism_config_tp_size: data parallelism alone is offered: "
            "expected 1, found 2");
  EXPECT_EQ(refused_file("accelerate/fp8.yaml"),
            "accelerate/fp8.yaml line 2: mixed_precision: fp8 is not offered here: expected no, "
            "fp16 or bf16");
  EXPECT_EQ(refused_file("accelerate/unknown_key.yaml"),
            "accelerate/unknown_key.yaml line 3: unknown key 'mixed_precison'; did you mean "
            "'mixed_precision'?");
}

TEST_F(ForeignConfig, UnknownKeysAndValuesNameTheNearest) {
  EXPECT_EQ(fsdp("fsdp_shardin_strategy: 1"),
            "c.yaml line 1: fsdp_config.fsdp_shardin_strategy: a key that Accelerate does not "
            "have; did you mean 'fsdp_sharding_strategy'?");
  EXPECT_EQ(fsdp("fsdp_sharding_strategy: FULL_SHRD"),
            "c.yaml line 1: fsdp_config.fsdp_sharding_strategy: expected one of FULL_SHARD, "
            "SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2, found 'FULL_SHRD'; did you "
            "mean 'FULL_SHARD'?");
  EXPECT_THAT(fsdp("fsdp_sharding_strategy: 6"), HasSubstr("expected one of FULL_SHARD"));
  EXPECT_EQ(ds("\"zero_optimization\": {\"stge\": 2}"),
            "ds.json line 1: zero_optimization.stge: a key that DeepSpeed does not have; did you "
            "mean 'stage'?");
  EXPECT_EQ(ds("\"train_batchsize\": 2"),
            "ds.json line 1: train_batchsize: a key that DeepSpeed does not have; did you mean "
            "'train_batch_size'?");
  EXPECT_EQ(refused("distributed_type: MEGATRON_LM").find("c.yaml line 1: distributed_type: "), 0u);
}

TEST_F(ForeignConfig, EveryFormOfAStrategy) {
  const char* names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                         "HYBRID_SHARD_ZERO2"};
  const char* ours[] = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                        "hybrid_shard_zero2"};
  for (int i = 0; i < 5; ++i) {
    const Words expected = i == 0 ? Words{} : Words{format_text("strategy: {}", ours[i])};
    for (const std::string& value : {std::string(names[i]), format_text("{}", i + 1)}) {
      for (const char* key :
           {"fsdp_sharding_strategy", "fsdp_reshard_after_forward", "sharding_strategy"}) {
        EXPECT_EQ(options(format_text("fsdp_config: {{{}: {}}}", key, value)), expected)
            << key << value;
      }
    }
  }
  EXPECT_EQ(options("fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}"),
            Words{"strategy: shard_grad_op"});
  EXPECT_EQ(fsdp("fsdp_version: 2, fsdp_reshard_after_forward: FULL_SHARD"),
            "c.yaml line 1: fsdp_config.fsdp_reshard_after_forward: expected true or false beside "
            "fsdp_version: 2, found 'FULL_SHARD'");
  EXPECT_EQ(fsdp("fsdp_reshard_after_forward: true"),
            "c.yaml line 1: fsdp_config.fsdp_reshard_after_forward: true and false are of "
            "fsdp_version: 2: expected one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
            "HYBRID_SHARD_ZERO2 beside no fsdp_version");
}

TEST_F(ForeignConfig, ContradictionsNameBothKeys) {
  EXPECT_EQ(refused("strategy: no_shard\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"),
            "c.yaml line 3: fsdp_config.fsdp_sharding_strategy contradicts c.yaml line 1: "
            "strategy: strategy is full_shard here and no_shard there");
  EXPECT_EQ(fsdp("fsdp_sharding_strategy: NO_SHARD, fsdp_reshard_after_forward: FULL_SHARD"),
            "c.yaml line 1: fsdp_config.fsdp_reshard_after_forward ('FULL_SHARD') contradicts "
            "c.yaml line 1: fsdp_config.fsdp_sharding_strategy ('NO_SHARD'): full_shard here and "
            "no_shard there");
  EXPECT_EQ(fsdp("fsdp_cpu_ram_efficient_loading: true, fsdp_sync_module_states: false"),
            "c.yaml line 1: fsdp_config.fsdp_cpu_ram_efficient_loading ('true') contradicts "
            "c.yaml line 1: fsdp_config.fsdp_sync_module_states ('false'): the first needs the "
            "second to be true");
  EXPECT_THAT(fsdp("fsdp_version: 2, fsdp_state_dict_type: LOCAL_STATE_DICT"),
              HasSubstr("fsdp_state_dict_type ('LOCAL_STATE_DICT') contradicts c.yaml line 1: "
                        "fsdp_config.fsdp_version ('2')"));
  EXPECT_EQ(refused("distributed_type: 'NO'\nnum_processes: 2\n"),
            "c.yaml line 2: num_processes ('2') contradicts c.yaml line 1: distributed_type "
            "('NO'): one process is expected");
  EXPECT_THAT(refused("distributed_type: MULTI_GPU\nfsdp_config: {fsdp_version: 1}\n"),
              HasSubstr("fsdp_config (a mapping) contradicts c.yaml line 1: distributed_type"));
  EXPECT_THAT(refused("use_cpu: true\ndistributed_type: MULTI_GPU\n"), HasSubstr("contradicts"));
  EXPECT_THAT(refused("num_machines: 2\nnum_processes: 3\n"),
              HasSubstr("num_processes ('3') contradicts c.yaml line 1: num_machines ('2')"));
  EXPECT_EQ(ds("\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}"),
            "ds.json line 1: fp16.enabled ('true') contradicts ds.json line 1: bf16.enabled "
            "('true'): one of them is expected to be true");
  EXPECT_THAT(ds("\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}"),
              HasSubstr("offload_param.device ('cpu') contradicts ds.json line 1: "
                        "zero_optimization.stage ('2'): expected a stage of at least 3"));
  write("ds.json", "{\"bf16\": {\"enabled\": true}}");
  EXPECT_EQ(refused("mixed_precision: fp16\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"),
            "ds.json line 1: bf16.enabled contradicts c.yaml line 1: mixed_precision: param-dtype "
            "is bfloat16 here and float16 there");
}

TEST_F(ForeignConfig, DeepSpeedStagesAndOptimizers) {
  const char* strategies[] = {"no_shard", "zero1", "shard_grad_op"};
  for (int stage = 0; stage < 3; ++stage) {
    EXPECT_EQ(options(format_text("{{\"zero_optimization\": {{\"stage\": {}}}}}", stage), "d.json"),
              Words{format_text("strategy: {}", strategies[stage])});
  }
  EXPECT_EQ(options("{\"zero_optimization\": {\"stage\": 3}}", "d.json"), Words{});
  EXPECT_EQ(
      options("{\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 4}}", "d.json"),
      (Words{"strategy: hybrid_shard", "shard_size: 4"}));
  EXPECT_EQ(
      options("{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": "
              "0.9}}}",
              "d.json"),
      (Words{"optimizer: sgd", "lr: 0.1", "weight_decay: 0", "momentum: 0.9", "nesterov: off"}));
  // Adam decays as AdamW does, unless the file says no.
  const std::string adam =
      "{{\"optimizer\": {{\"type\": \"Adam\", \"params\": {{\"weight_decay\": 0.1{}}}}}}}";
  EXPECT_EQ(options(fmt::format(fmt::runtime(adam), ""), "d.json"), Words{"weight_decay: 0.1"});
  EXPECT_EQ(options(fmt::format(fmt::runtime(adam), ", \"adam_w_mode\": false"), "d.json"),
            (Words{"optimizer: adam", "weight_decay: 0.1"}));
  EXPECT_THAT(ds("\"optimizer\": {\"type\": \"OneBitAdam\"}"), HasSubstr("expected one of Adam, "));
  EXPECT_THAT(
      ds("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"amsgrad\": true}}"),
      HasSubstr("optimizer.params.amsgrad: not offered here: expected false, found 'true'"));
  EXPECT_THAT(ds("\"fp16\": {\"enabled\": true, \"loss_scale\": 128}"),
              HasSubstr("fp16.loss_scale: expected 0 (dynamic), found '128'"));
  EXPECT_THAT(ds("\"compression_training\": {\"weight_quantization\": {}}"),
              HasSubstr("compression_training: not offered here"));
}

TEST_F(ForeignConfig, DeepSpeedSchedulesWhoseFormulaIsOurs) {
  const auto scheduler = [](const std::string& type, const std::string& params) {
    return "\"scheduler\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}";
  };
  const std::string linear = "\"warmup_num_steps\": 10, \"warmup_type\": \"linear\"";
  EXPECT_EQ(
      options("{" + scheduler("WarmupLR", linear) + "}", "d.json"),
      (Words{"lr_schedule: linear", "warmup_steps: 10", "total_steps: auto", "min_lr_ratio: 1"}));
  EXPECT_EQ(
      options("{" +
                  scheduler("WarmupCosineLR", "\"total_num_steps\": 90, \"cos_min_ratio\": 0.01") +
                  "}",
              "d.json"),
      (Words{"lr_schedule: cosine", "total_steps: 90", "min_lr_ratio: 0.01"}));
  EXPECT_THAT(
      ds(scheduler("WarmupLR", "\"warmup_num_steps\": 10")),
      HasSubstr("warmup_num_steps: a logarithmic warm-up (DeepSpeed's default) has no equal "
                "here: expected warmup_type: linear beside it"));
  EXPECT_THAT(ds(scheduler("WarmupCosineLR", linear)), HasSubstr("begins at 0"));
  EXPECT_THAT(ds(scheduler("WarmupLR", "\"warmup_min_lr\": 0.1")), HasSubstr("expected 0"));
  EXPECT_THAT(ds(scheduler("OneCycle", "")), HasSubstr("OneCycle has no equal here"));
  EXPECT_THAT(ds("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.1}}, " +
                 scheduler("WarmupLR", "\"warmup_max_lr\": 0.2")),
              HasSubstr("scheduler.params.warmup_max_lr contradicts ds.json line 1: "
                        "optimizer.params.lr: lr is 0.2 here and 0.1 there"));
}

TEST_F(ForeignConfig, AStrongerSourceOverrules) {
  const std::string config = kFixtures + "accelerate/version_2.yaml";
  const auto parsed =
      parse(Words{"m.onnx", "--config", config, "--strategy", "zero1", "--param-dtype", "float32"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->options.sharding.strategy, Strategy::kZero1);
  EXPECT_EQ(parsed->options.sharding.param_dtype, DType::kFloat32);
  EXPECT_EQ(parsed->options.sharding.reduce_dtype, DType::kBFloat16);
}

TEST_F(ForeignConfig, IgnoredModulesBecomeGlobs) {
  EXPECT_EQ(ignored_globs("lm_head"), (std::vector<std::string>{"lm_head.*"}));
  EXPECT_EQ(ignored_globs(R"(model\.embed|.*\.norm)"),
            (std::vector<std::string>{"model.embed.*", "*.norm.*"}));
  EXPECT_EQ(ignored_globs("layers.(0|1)"), std::nullopt);
  EXPECT_EQ(ignored_globs(""), std::nullopt);
  EXPECT_EQ(fsdp("fsdp_ignored_modules: 'a[0]'"),
            "c.yaml line 1: fsdp_config.fsdp_ignored_modules: expected module names with . , .* "
            "and | alone, found 'a[0]'");
}

TEST_F(ForeignConfig, ManyHosts) {
  EXPECT_THAT(refused("num_machines: 2\nmachine_rank: 2\n"),
              HasSubstr("machine_rank ('2') contradicts c.yaml line 1: num_machines ('2')"));
  EXPECT_THAT(refused("machine_rank: 1\n"), HasSubstr("expected 0 beside one machine, found 1"));
}

TEST_F(ForeignConfig, JsonOfAccelerateAndOurOwn) {
  EXPECT_EQ(options(R"({"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": 3}})",
                    "a.json"),
            Words{"strategy: no_shard"});
  EXPECT_EQ(options(R"({"strategy": "zero1", "optimizer": "sgd", "lr": 0.001})", "o.json"),
            (Words{"strategy: zero1", "optimizer: sgd", "weight_decay: 0", "momentum: 0",
                   "nesterov: off"}));
}

TEST_F(ForeignConfig, AnotherEnvironmentIsNamedAndNotItsKeys) {
  EXPECT_EQ(refused("base_job_name: a\ncompute_environment: AMAZON_SAGEMAKER\n"),
            "c.yaml line 2: compute_environment: expected LOCAL_MACHINE, found 'AMAZON_SAGEMAKER'");
}

TEST_F(ForeignConfig, JsonMustBeAnObject) {
  EXPECT_EQ(refused("[1]", "ds.json"), "ds.json: expected an object of DeepSpeed's keys");
  EXPECT_EQ(refused("{\"a\": [1}", "ds.json").find("ds.json line 1: expected JSON: "), 0u);
}

}  // namespace foreign_config_test
}  // namespace ofsdp
