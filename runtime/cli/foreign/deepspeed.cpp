#include "runtime/cli/foreign/deepspeed.h"

#include "runtime/cli/foreign/accelerate_fsdp.h"
#include "runtime/cli/foreign/deepspeed_training.h"

namespace ofsdp {
namespace {

void add_without_effect(std::vector<KeyRule>& rules,
                        std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) rules.push_back({name, {}});
}

bool automatic(const ForeignKey& key) { return key.is("auto"); }

Result<bool> on(const std::optional<ForeignKey>& key) {
  return key ? switch_of(*key) : Result<bool>(false);
}

}  // namespace

KeyRule DeepSpeedKeys::keep(std::string_view name, std::optional<ForeignKey>& at) {
  return {name, [&at](const ForeignKey& key) {
            if (!automatic(key)) at = key;
            return ok_status();
          }};
}

KeyRule DeepSpeedKeys::effect(std::string_view name, std::string option) {
  return {name, [this, option = std::move(option)](const ForeignKey& key) -> Status {
            if (automatic(key)) return ok_status();
            OFSDP_ASSIGN_OR_RETURN(const std::string text, text_of(key));
            return file_.set(option, text, key);
          }};
}

// Something that would change what is computed, and is not offered.
KeyRule DeepSpeedKeys::must_be_off(std::string_view name) {
  return {name, [this](const ForeignKey& key) -> Status {
            bool off = key.value.IsScalar() && (key.is("false") || automatic(key));
            if (key.value.IsMap()) {
              const YAML::Node enabled = key.value["enabled"];
              off = key.value.size() == 0 || (enabled && enabled.IsScalar() &&
                                              !parse_switch(enabled.Scalar()).value_or(true));
            }
            if (!off) return input_error("{}: not offered here: expected it off", key.subject);
            file_.without_effect(key);
            return ok_status();
          }};
}

KeyRule DeepSpeedKeys::offload(std::string_view name, std::optional<ForeignKey>& device) {
  return {name, [this, &device](const ForeignKey& key) -> Status {
            std::vector<KeyRule> rules = {keep("device", device)};
            add_without_effect(
                rules, {"nvme_path", "pin_memory", "buffer_count", "buffer_size", "max_in_cpu",
                        "pipeline_read", "pipeline_write", "pipeline", "fast_init", "ratio",
                        "super_offload", "cpuadam_cores_perc"});
            if (key.is("false") || automatic(key)) return ok_status();
            return file_.read_section(key, rules);
          }};
}

KeyRule DeepSpeedKeys::precision(std::string_view name, std::optional<ForeignKey>& enabled) {
  return {name, [this, &enabled](const ForeignKey& key) -> Status {
            std::vector<KeyRule> rules = {keep("enabled", enabled)};
            rules.push_back({"loss_scale", [](const ForeignKey& scale) -> Status {
                               if (automatic(scale)) return ok_status();
                               OFSDP_ASSIGN_OR_RETURN(const double value, number_of(scale));
                               return value == 0 ? ok_status() : expected(scale, "0 (dynamic)");
                             }});
            add_without_effect(
                rules, {"auto_cast", "initial_scale_power", "loss_scale_window", "hysteresis",
                        "consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads",
                        "immediate_grad_update", "check_grad_overflow",
                        "bf16_master_weights_and_grads", "bf16_optimizer_states"});
            return file_.read_section(key, rules);
          }};
}

std::vector<KeyRule> DeepSpeedKeys::zero_rules() {
  std::vector<KeyRule> rules = {
      keep("stage", stage), offload("offload_optimizer", offload_optimizer),
      offload("offload_param", offload_param), keep("zero_hpz_partition_size", hpz_),
      keep("mics_shard_size", mics_)};
  rules.push_back({"cpu_offload", [this](const ForeignKey& key) -> Status {
                     OFSDP_ASSIGN_OR_RETURN(const bool cpu, switch_of(key));
                     file_.warn(key, "deprecated by DeepSpeed; offload_optimizer takes its place");
                     return cpu ? file_.set("cpu-offload", "optimizer", key) : ok_status();
                   }});
  rules.push_back({"cpu_offload_param", [this](const ForeignKey& key) -> Status {
                     OFSDP_ASSIGN_OR_RETURN(const bool cpu, switch_of(key));
                     file_.warn(key, "deprecated by DeepSpeed; offload_param takes its place");
                     return cpu ? file_.set("cpu-offload", "params", key) : ok_status();
                   }});
  add_without_effect(rules, {"allgather_bucket_size",
                             "allgather_partitions",
                             "allgather_size",
                             "contiguous_gradients",
                             "cpu_offload_use_pin_memory",
                             "elastic_checkpoint",
                             "enable_sanity_checks",
                             "find_unused_parameters",
                             "gather_16bit_weights_on_model_save",
                             "grad_hooks",
                             "ignore_unused_parameters",
                             "leaf_module",
                             "legacy_stage1",
                             "load_from_fp32_weights",
                             "log_trace_cache_warnings",
                             "max_live_parameters",
                             "max_reuse_distance",
                             "memory_efficient_linear",
                             "mics_hierarchical_params_gather",
                             "model_persistence_threshold",
                             "module_granularity_threshold",
                             "overlap_comm",
                             "override_module_apply",
                             "param_persistence_threshold",
                             "pipeline_loading_checkpoint",
                             "prefetch_bucket_size",
                             "reduce_bucket_size",
                             "reduce_scatter",
                             "round_robin_gradients",
                             "save_muon_momentum_buffer_in_memory",
                             "stage3_allgather_sequential",
                             "stage3_gather_16bit_weights_on_model_save",
                             "stage3_gather_fp16_weights_on_model_save",
                             "stage3_max_live_parameters",
                             "stage3_max_reuse_distance",
                             "stage3_model_persistence_threshold",
                             "stage3_module_granularity_threshold",
                             "stage3_param_persistence_threshold",
                             "stage3_prefetch_bucket_size",
                             "stage3_use_all_reduce_for_fetch_params",
                             "sub_group_size",
                             "use_multi_rank_bucket_allreduce",
                             "zenflow",
                             "zero_quantized_gradients",
                             "zero_quantized_nontrainable_weights",
                             "zero_quantized_weights",
                             "zeropp_loco_param"});
  return rules;
}

// `true` is stage 1, as it was before stages had numbers.
Status DeepSpeedKeys::read_zero(const ForeignKey& key) {
  if (key.value.IsMap()) return file_.read_section(key, zero_rules());
  OFSDP_ASSIGN_OR_RETURN(const bool enabled, switch_of(key));
  file_.warn(key, "deprecated by DeepSpeed; zero_optimization.stage takes its place");
  return file_.set("strategy", enabled ? "zero1" : "no_shard", key);
}

Status DeepSpeedKeys::communication_type(const ForeignKey& key) {
  const std::vector<std::string> kNames = {"fp32", "fp16", "bf16", "bfp16"};
  static constexpr std::string_view kDTypes[] = {"float32", "float16", "bfloat16", "bfloat16"};
  OFSDP_ASSIGN_OR_RETURN(const size_t which, choice_of(key, kNames));
  return file_.set("reduce-dtype", std::string(kDTypes[which]), key);
}

// The section is there in many files with everything off; DeepSpeed itself is then told by the model.
Status DeepSpeedKeys::read_checkpointing(const ForeignKey& key) {
  const auto recompute = [this, key](const ForeignKey& one) -> Status {
    if (one.is("false") || one.is("0") || automatic(one)) return ok_status();
    return file_.set("activation-checkpointing", "unit", key);
  };
  return file_.read_section(key, {{"partition_activations", recompute},
                                  {"cpu_checkpointing", recompute},
                                  {"number_checkpoints", recompute},
                                  {"contiguous_memory_optimization", {}},
                                  {"synchronize_checkpoint_boundary", {}},
                                  {"profile", {}}});
}

std::vector<KeyRule> DeepSpeedKeys::rules() {
  std::vector<KeyRule> rules = {
      effect("train_batch_size", "global-batch-size"),
      effect("train_micro_batch_size_per_gpu", "batch-size"),
      effect("gradient_accumulation_steps", "grad-accum"),
      keep("gradient_clipping", clipping),
      effect("dataloader_drop_last", "drop-last"),
      {"steps_per_print",
       [this](const ForeignKey& key) -> Status {
         if (automatic(key) || key.is("inf") || key.is(".inf")) return ok_status();
         OFSDP_ASSIGN_OR_RETURN(const int64_t steps, count_of(key, 1));
         return file_.set("log-interval", fmt::format("{}", steps), key);
       }},
      precision("fp16", fp16_),
      precision("bf16", bf16_),
      precision("bfloat16", bf16_),
      {"zero_optimization", [this](const ForeignKey& key) { return read_zero(key); }},
      {"communication_data_type",
       [this](const ForeignKey& key) { return communication_type(key); }},
      {"gradient_allreduce_op",
       [](const ForeignKey& key) { return choice_of(key, {"mean"}).status(); }},
      {"activation_checkpointing",
       [this](const ForeignKey& key) { return read_checkpointing(key); }},
      keep("optimizer", optimizer_),
      keep("scheduler", scheduler_)};
  for (const std::string_view name :
       {"amp", "compression_training", "curriculum_learning", "data_efficiency", "elasticity",
        "expert_parallel", "hybrid_engine", "progressive_layer_drop", "quantize_training",
        "sparse_attention", "sparse_gradients", "tensor_parallel", "torch_autocast",
        "weight_quantization"}) {
    rules.push_back(must_be_off(name));
  }
  add_without_effect(rules, {"aio",
                             "autotuning",
                             "checkpoint",
                             "comet",
                             "comms_logger",
                             "compile",
                             "csv_monitor",
                             "data_parallel_group",
                             "data_types",
                             "datastates_ckpt",
                             "disable_allgather",
                             "dump_state",
                             "eigenvalue",
                             "flops_profiler",
                             "gradient_predivide_factor",
                             "graph_harvesting",
                             "log_level",
                             "managed_gradient_accumulation",
                             "memory_breakdown",
                             "mesh_device",
                             "monitor_config",
                             "nebula",
                             "pipeline",
                             "prescale_gradients",
                             "seq_parallel_communication_data_type",
                             "sequence_parallel_size",
                             "tensorboard",
                             "use_data_before_expert_parallelism",
                             "use_node_local_storage",
                             "vocabulary_size",
                             "wall_clock_breakdown",
                             "wandb",
                             "zero_allow_untested_optimizer",
                             "zero_force_ds_cpu_optimizer"});
  return rules;
}

Status DeepSpeedKeys::settle_stage() {
  if (!stage) return ok_status();
  const std::vector<std::string> kStages = {"0", "1", "2", "3"};
  static constexpr std::string_view kStrategies[] = {"no_shard", "zero1", "shard_grad_op",
                                                     "full_shard"};
  OFSDP_ASSIGN_OR_RETURN(const size_t which, choice_of(*stage, kStages));
  std::string strategy(kStrategies[which]);
  for (const auto* group : {&hpz_, &mics_}) {
    if (!*group) continue;
    OFSDP_ASSIGN_OR_RETURN(const int64_t size, count_of(**group, -1));
    if (size <= 1) continue;
    if (which != 3) return contradiction(**group, *stage, "groups are of stage 3");
    strategy = "hybrid_shard";
    OFSDP_RETURN_IF_ERROR(file_.set("shard-size", fmt::format("{}", size), **group));
  }
  return file_.set("strategy", strategy, *stage);
}

Status DeepSpeedKeys::settle_offload() {
  const std::vector<std::string> devices = {"none", "cpu", "nvme"};
  bool cpu = false;
  for (const auto* offloaded : {&offload_optimizer, &offload_param}) {
    if (!*offloaded) continue;
    const ForeignKey& key = **offloaded;
    OFSDP_ASSIGN_OR_RETURN(const size_t device, choice_of(key, devices));
    if (device == 2) return input_error("{}: not offered here: expected none or cpu", key.subject);
    if (device == 0) continue;
    const std::string least = offloaded == &offload_param ? "3" : "1";
    if (stage && stage->value.Scalar() < least) {
      return contradiction(key, *stage, fmt::format("expected a stage of at least {}", least));
    }
    cpu = true;
  }
  if (!cpu) return ok_status();
  const bool params = offload_param && offload_param->is("cpu");
  return file_.set("cpu-offload", params ? "params" : "optimizer",
                   params ? *offload_param : *offload_optimizer);
}

Status DeepSpeedKeys::settle_precision() {
  OFSDP_ASSIGN_OR_RETURN(const bool half, on(fp16_));
  OFSDP_ASSIGN_OR_RETURN(const bool brain, on(bf16_));
  if (half && brain) return contradiction(*fp16_, *bf16_, "one of them is expected to be true");
  if (half) return set_precision(file_, *fp16_, "float16");
  return brain ? set_precision(file_, *bf16_, "bfloat16") : ok_status();
}

Status DeepSpeedKeys::settle() {
  OFSDP_RETURN_IF_ERROR(settle_stage());
  OFSDP_RETURN_IF_ERROR(settle_offload());
  OFSDP_RETURN_IF_ERROR(settle_precision());
  if (clipping) {
    OFSDP_ASSIGN_OR_RETURN(const double most, number_of(*clipping));
    OFSDP_RETURN_IF_ERROR(
        file_.set("clip-grad-norm", most == 0 ? "off" : clipping->value.Scalar(), *clipping));
  }
  return read_deepspeed_training(file_, optimizer_, scheduler_);
}

Status read_deepspeed(ForeignFile& file, const YAML::Node& root) {
  DeepSpeedKeys keys(file);
  OFSDP_RETURN_IF_ERROR(file.read(root, "", keys.rules()));
  OFSDP_RETURN_IF_ERROR(keys.settle());
  file.finish();
  return ok_status();
}

}  // namespace ofsdp
