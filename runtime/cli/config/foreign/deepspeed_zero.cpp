// The section zero_optimization: stages, groups, offload.
#include "runtime/cli/config/foreign/deepspeed.h"

namespace ofsdp::cli {

KeyRule DeepSpeedKeys::offload(std::string_view name, std::optional<ForeignKey>& device) {
  return {name, [this, &device](const ForeignKey& key) -> Status {
            std::vector<KeyRule> rules = {keep("device", device)};
            add_without_effect(
                rules, {"nvme_path", "pin_memory", "buffer_count", "buffer_size", "max_in_cpu",
                        "pipeline_read", "pipeline_write", "pipeline", "fast_init", "ratio",
                        "super_offload", "cpuadam_cores_perc"});
            if (key.is("false") || key.automatic()) return ok_status();
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
    OFSDP_RETURN_IF_ERROR(file_.set("shard-size", format_text("{}", size), **group));
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
      return contradiction(key, *stage, format_text("expected a stage of at least {}", least));
    }
    cpu = true;
  }
  if (!cpu) return ok_status();
  const bool params = offload_param && offload_param->is("cpu");
  return file_.set("cpu-offload", params ? "params" : "optimizer",
                   params ? *offload_param : *offload_optimizer);
}

}  // namespace ofsdp::cli
