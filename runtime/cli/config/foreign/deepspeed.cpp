
#include <utility>

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {
namespace {

// DeepSpeed's optimizer types and our names, in the order that messages use.
constexpr std::pair<const char*, const char*> kOptimizers[] = {
    {"Adam", "adam"},   {"AdamW", "adamw"},       {"SGD", "sgd"},   {"Adagrad", "adagrad"},
    {"Lamb", "lamb"},   {"Adadelta", "adadelta"}, {"Lion", "lion"}, {"RMSprop", "rmsprop"},
    {"NAdam", "nadam"}, {"RAdam", "radam"},
};

// A parameter that must have this value, since others compute something else.
KeyRule only(std::string_view name, std::string value) {
  return {name, [value = std::move(value)](const ForeignKey& key) -> Status {
            const auto number = parse_number(value);
            const auto found =
                key.value.IsScalar() ? parse_number(key.value.Scalar()) : std::optional<double>();
            const bool same = key.automatic() || key.is(value) || (number && found == number);
            return same ? ok_status()
                        : input_error("{}: not offered here: expected {}, found '{}'", key.subject,
                                      value, key.value.IsScalar() ? key.value.Scalar() : "...");
          }};
}

// A section's `type` and `params`.
struct TypedSection {
  std::optional<ForeignKey> type, params;

  Status read(ForeignFile& file, const ForeignKey& key) {
    std::vector<KeyRule> rules = {
        keep("type", type, true), keep("params", params, true), {"legacy_fusion", {}}};
    OFSDP_RETURN_IF_ERROR(file.read_section(key, rules));
    if (!type && params) return expected(key, "a type beside params");
    return ok_status();
  }
};

class Training {
 public:
  explicit Training(ForeignFile& file) : file_(file) {}

  Status read(const std::optional<ForeignKey>& optimizer,
              const std::optional<ForeignKey>& scheduler) {
    if (optimizer) OFSDP_RETURN_IF_ERROR(read_optimizer(*optimizer));
    if (scheduler) OFSDP_RETURN_IF_ERROR(read_scheduler(*scheduler));
    return resolve_rate();
  }

 private:
  KeyRule betas() {
    return {"betas", [this](const ForeignKey& key) -> Status {
              if (key.automatic()) return ok_status();
              if (!key.value.IsSequence() || key.value.size() != 2) {
                return expected(key, "a list of two numbers");
              }
              return file_.set("betas", key.value[0].Scalar() + "," + key.value[1].Scalar(), key);
            }};
  }

  Status read_optimizer(const ForeignKey& key) {
    TypedSection section;
    OFSDP_RETURN_IF_ERROR(section.read(file_, key));
    if (!section.type) return ok_status();
    std::vector<std::string> types;
    for (const auto& [type, name] : kOptimizers) types.emplace_back(type);
    OFSDP_ASSIGN_OR_RETURN(const size_t which, read_choice(*section.type, types));
    if (section.params) OFSDP_RETURN_IF_ERROR(file_.read_section(*section.params, parameters()));
    std::string name = kOptimizers[which].second;
    if (name == "adam") {
      OFSDP_ASSIGN_OR_RETURN(name, kind_of_adam());
    }
    return file_.set("optimizer", name, *section.type);
  }

  std::vector<KeyRule> parameters() {
    return {keep("lr", lr_, true),
            betas(),
            file_.copies("eps", "eps"),
            keep("weight_decay", decay_, true),
            file_.copies("momentum", "momentum"),
            file_.copies("nesterov", "nesterov"),
            file_.copies("rho", "rho"),
            keep("adam_w_mode", adam_w_mode_, true),
            {"torch_adam", {}},
            {"fp32_optimizer_states", {}},
            {"fused", {}},
            {"foreach", {}},
            only("bias_correction", "true"),
            only("amsgrad", "false"),
            only("maximize", "false"),
            only("dampening", "0"),
            only("lr_decay", "0"),
            only("initial_accumulator_value", "0"),
            only("eps_inside_sqrt", "false"),
            refused("max_coeff", "the trust ratio has no bounds here"),
            refused("min_coeff", "the trust ratio has no bounds here"),
            refused("max_grad_norm", "gradient_clipping says it")};
  }

  static KeyRule refused(std::string_view name, std::string why) {
    return {name, [why = std::move(why)](const ForeignKey& key) -> Status {
              return input_error("{}: {}", key.subject, why);
            }};
  }

  // DeepSpeed's Adam decays like AdamW unless adam_w_mode is false.
  Result<std::string> kind_of_adam() {
    OFSDP_ASSIGN_OR_RETURN(const bool decoupled, switch_or(adam_w_mode_, true));
    if (!decay_) return std::string("adam");  // without decay both are equal
    OFSDP_ASSIGN_OR_RETURN(const double decay, number_of(*decay_));
    return std::string(decoupled && decay > 0 ? "adamw" : "adam");
  }

  Status read_scheduler(const ForeignKey& key) {
    TypedSection section;
    OFSDP_RETURN_IF_ERROR(section.read(file_, key));
    if (!section.type) return ok_status();
    if (section.type->is("OneCycle") || section.type->is("LRRangeTest")) {
      return input_error(
          "{}: {} has no equal here: expected WarmupLR, WarmupDecayLR or "
          "WarmupCosineLR",
          section.type->subject, section.type->value.Scalar());
    }
    OFSDP_ASSIGN_OR_RETURN(
        const size_t which,
        read_choice(*section.type, {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}));
    if (section.params) {
      OFSDP_RETURN_IF_ERROR(file_.read_section(*section.params, schedule_rules(which == 2)));
    }
    OFSDP_RETURN_IF_ERROR(
        file_.set("lr-schedule", which == 2 ? "cosine" : "linear", *section.type));
    if (which == 0) OFSDP_RETURN_IF_ERROR(file_.set("min-lr-ratio", "1", *section.type));
    OFSDP_RETURN_IF_ERROR(resolve_warmup(which == 2));
    if (total_) {
      OFSDP_ASSIGN_OR_RETURN(const int64_t total, count_of(*total_, 1));
      OFSDP_RETURN_IF_ERROR(file_.set("total-steps", total, *total_));
    }
    return ok_status();
  }

  std::vector<KeyRule> schedule_rules(bool cosine) {
    std::vector<KeyRule> rules = {keep("warmup_num_steps", warmup_, true),
                                  keep("warmup_type", type_, true),
                                  keep("total_num_steps", total_, true)};
    if (cosine) {
      rules.push_back(file_.copies("cos_min_ratio", "min-lr-ratio"));
      rules.push_back(only("warmup_min_ratio", "0"));
    } else {
      rules.push_back(only("warmup_min_lr", "0"));
      rules.push_back(keep("warmup_max_lr", most_, true));
    }
    rules.push_back({"last_batch_iteration", [](const ForeignKey&) { return ok_status(); }});
    return rules;
  }

  // See [Note: DeepSpeed's schedules].
  Status resolve_warmup(bool cosine) {
    if (!warmup_) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(const int64_t steps, count_of(*warmup_, 0));
    if (steps > 0 && cosine) {
      return input_error(
          "{}: the warm-up of WarmupCosineLR begins at 0, that of cosine at lr/{}: "
          "expected auto or 0, found {}",
          warmup_->subject, steps, steps);
    }
    if (steps > 0 && (!type_ || !type_->is("linear"))) {
      return input_error(
          "{}: a logarithmic warm-up (DeepSpeed's default) has no equal here: "
          "expected warmup_type: linear beside it",
          type_ ? type_->subject : warmup_->subject);
    }
    return file_.set("warmup-steps", steps, *warmup_);
  }

  // Optimizer and scheduler must have the same rate.
  Status resolve_rate() {
    if (lr_) OFSDP_RETURN_IF_ERROR(file_.copy("lr", *lr_));
    if (decay_) OFSDP_RETURN_IF_ERROR(file_.copy("weight-decay", *decay_));
    return most_ ? file_.copy("lr", *most_) : ok_status();
  }

  ForeignFile& file_;
  std::optional<ForeignKey> lr_, decay_, adam_w_mode_, warmup_, type_, total_, most_;
};

}  // namespace

// A feature that would change the result and is not offered.
KeyRule DeepSpeedKeys::must_be_off(std::string_view name) {
  return {name, [this](const ForeignKey& key) -> Status {
            bool off = key.value.IsScalar() && (key.is("false") || key.automatic());
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

KeyRule DeepSpeedKeys::precision(std::string_view name, std::optional<ForeignKey>& enabled) {
  return {name, [this, &enabled](const ForeignKey& key) -> Status {
            std::vector<KeyRule> rules = {keep("enabled", enabled, true)};
            rules.push_back({"loss_scale", [](const ForeignKey& scale) -> Status {
                               if (scale.automatic()) return ok_status();
                               OFSDP_ASSIGN_OR_RETURN(const double value, number_of(scale));
                               return value == 0 ? ok_status() : expected(scale, "0 (dynamic)");
                             }});
            add_without_effect(
                rules,
                "auto_cast initial_scale_power loss_scale_window hysteresis "
                "consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads "
                "immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
                "bf16_optimizer_states");
            return file_.read_section(key, rules);
          }};
}

// Many files have this section with everything off, since the model tells DeepSpeed.
Status DeepSpeedKeys::read_checkpointing(const ForeignKey& key) {
  const auto recompute = [this, key](const ForeignKey& one) -> Status {
    if (one.is("false") || one.is("0") || one.automatic()) return ok_status();
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
      file_.copies("train_batch_size", "global-batch-size"),
      file_.copies("train_micro_batch_size_per_gpu", "batch-size"),
      file_.copies("gradient_accumulation_steps", "grad-accum"),
      keep("gradient_clipping", clipping_, true),
      file_.copies("dataloader_drop_last", "drop-last"),
      {"steps_per_print",
       [this](const ForeignKey& key) -> Status {
         if (key.automatic() || key.is("inf") || key.is(".inf")) return ok_status();
         OFSDP_ASSIGN_OR_RETURN(const int64_t steps, count_of(key, 1));
         return file_.set("log-interval", steps, key);
       }},
      precision("fp16", fp16_),
      precision("bf16", bf16_),
      precision("bfloat16", bf16_),
      {"zero_optimization", [this](const ForeignKey& key) { return read_zero(key); }},
      {"communication_data_type",
       [this](const ForeignKey& key) {
         return file_.set_meaning("reduce-dtype", key,
                                  {{"fp32", "float32"},
                                   {"fp16", "float16"},
                                   {"bf16", "bfloat16"},
                                   {"bfp16", "bfloat16"}});
       }},
      {"gradient_allreduce_op",
       [](const ForeignKey& key) { return read_choice(key, {"mean"}).status(); }},
      {"activation_checkpointing",
       [this](const ForeignKey& key) { return read_checkpointing(key); }},
      keep("optimizer", optimizer_, true),
      keep("scheduler", scheduler_, true)};
  for (const std::string_view name :
       {"amp", "compression_training", "curriculum_learning", "data_efficiency", "elasticity",
        "expert_parallel", "hybrid_engine", "progressive_layer_drop", "quantize_training",
        "sparse_attention", "sparse_gradients", "tensor_parallel", "torch_autocast",
        "weight_quantization"}) {
    rules.push_back(must_be_off(name));
  }
  add_without_effect(rules,
                     "aio autotuning checkpoint comet comms_logger compile csv_monitor "
                     "data_parallel_group data_types datastates_ckpt disable_allgather "
                     "dump_state eigenvalue flops_profiler gradient_predivide_factor "
                     "graph_harvesting log_level managed_gradient_accumulation memory_breakdown "
                     "mesh_device monitor_config nebula pipeline prescale_gradients "
                     "seq_parallel_communication_data_type sequence_parallel_size tensorboard "
                     "use_data_before_expert_parallelism use_node_local_storage vocabulary_size "
                     "wall_clock_breakdown wandb zero_allow_untested_optimizer "
                     "zero_force_ds_cpu_optimizer");
  return rules;
}

Status DeepSpeedKeys::resolve_precision() {
  OFSDP_ASSIGN_OR_RETURN(const bool half, switch_or(fp16_, false));
  OFSDP_ASSIGN_OR_RETURN(const bool brain, switch_or(bf16_, false));
  if (half && brain) return contradiction(*fp16_, *bf16_, "one of them is expected to be true");
  if (half) return set_precision(file_, *fp16_, "float16");
  return brain ? set_precision(file_, *bf16_, "bfloat16") : ok_status();
}

KeyRule DeepSpeedKeys::offload(std::string_view name, std::optional<ForeignKey>& device) {
  return {name, [this, &device](const ForeignKey& key) -> Status {
            std::vector<KeyRule> rules = {keep("device", device, true)};
            add_without_effect(
                rules,
                "nvme_path pin_memory buffer_count buffer_size max_in_cpu pipeline_read "
                "pipeline_write pipeline fast_init ratio super_offload cpuadam_cores_perc");
            if (key.is("false") || key.automatic()) return ok_status();
            return file_.read_section(key, rules);
          }};
}

KeyRule DeepSpeedKeys::old_offload(std::string_view name, const char* now, std::string meaning) {
  return {name, [this, now, meaning = std::move(meaning)](const ForeignKey& key) -> Status {
            OFSDP_ASSIGN_OR_RETURN(const bool cpu, switch_of(key));
            file_.warn(key, format_text("deprecated by DeepSpeed; {} takes its place", now));
            return cpu ? file_.set("cpu-offload", meaning, key) : ok_status();
          }};
}

std::vector<KeyRule> DeepSpeedKeys::zero_rules() {
  std::vector<KeyRule> rules = {keep("stage", stage, true),
                                offload("offload_optimizer", offload_optimizer),
                                offload("offload_param", offload_param),
                                keep("zero_hpz_partition_size", hpz_, true),
                                keep("mics_shard_size", mics_, true),
                                keep("allgather_bucket_size", gathered_, true),
                                keep("reduce_bucket_size", reduced_, true),
                                keep("stage3_prefetch_bucket_size", prefetched_, true)};
  rules.push_back(old_offload("cpu_offload", "offload_optimizer", "optimizer"));
  rules.push_back(old_offload("cpu_offload_param", "offload_param", "params"));
  add_without_effect(rules,
                     "allgather_partitions allgather_size "
                     "contiguous_gradients cpu_offload_use_pin_memory elastic_checkpoint "
                     "enable_sanity_checks find_unused_parameters "
                     "gather_16bit_weights_on_model_save grad_hooks ignore_unused_parameters "
                     "leaf_module legacy_stage1 load_from_fp32_weights log_trace_cache_warnings "
                     "max_live_parameters max_reuse_distance memory_efficient_linear "
                     "mics_hierarchical_params_gather model_persistence_threshold "
                     "module_granularity_threshold overlap_comm override_module_apply "
                     "param_persistence_threshold pipeline_loading_checkpoint "
                     "prefetch_bucket_size reduce_scatter "
                     "round_robin_gradients save_muon_momentum_buffer_in_memory "
                     "stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save "
                     "stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters "
                     "stage3_max_reuse_distance stage3_model_persistence_threshold "
                     "stage3_module_granularity_threshold stage3_param_persistence_threshold "
                     "stage3_use_all_reduce_for_fetch_params "
                     "sub_group_size use_multi_rank_bucket_allreduce zenflow "
                     "zero_quantized_gradients zero_quantized_nontrainable_weights "
                     "zero_quantized_weights zeropp_loco_param");
  return rules;
}

// `true` is stage 1, as before stages had numbers.
Status DeepSpeedKeys::read_zero(const ForeignKey& key) {
  if (key.value.IsMap()) return file_.read_section(key, zero_rules());
  OFSDP_ASSIGN_OR_RETURN(const bool enabled, switch_of(key));
  file_.warn(key, "deprecated by DeepSpeed; zero_optimization.stage takes its place");
  return file_.set("strategy", enabled ? "zero1" : "no_shard", key);
}

Status DeepSpeedKeys::resolve_stage() {
  if (!stage) return ok_status();
  const std::vector<std::string> kStages = {"0", "1", "2", "3"};
  static constexpr std::string_view kStrategies[] = {"no_shard", "zero1", "shard_grad_op",
                                                     "full_shard"};
  OFSDP_ASSIGN_OR_RETURN(const size_t which, read_choice(*stage, kStages));
  std::string strategy(kStrategies[which]);
  for (const auto* group : {&hpz_, &mics_}) {
    if (!*group) continue;
    OFSDP_ASSIGN_OR_RETURN(const int64_t size, count_of(**group, -1));
    if (size <= 1) continue;
    if (which != 3) return contradiction(**group, *stage, "groups are of stage 3");
    strategy = "hybrid_shard";
    OFSDP_RETURN_IF_ERROR(file_.set("shard-size", size, **group));
  }
  return file_.set("strategy", strategy, *stage);
}

Status DeepSpeedKeys::resolve_offload() {
  const std::vector<std::string> devices = {"none", "cpu", "nvme"};
  bool cpu = false;
  for (const auto* offloaded : {&offload_optimizer, &offload_param}) {
    if (!*offloaded) continue;
    const ForeignKey& key = **offloaded;
    OFSDP_ASSIGN_OR_RETURN(const size_t device, read_choice(key, devices));
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

// DeepSpeed counts elements. Our units are gathered and reduced as a whole, so the smallest of the
// sizes for the stage is used for both.
Status DeepSpeedKeys::resolve_buckets() {
  const bool third = stage && stage->is("3");
  OFSDP_ASSIGN_OR_RETURN(const bool half, switch_or(fp16_, false));
  OFSDP_ASSIGN_OR_RETURN(const bool brain, switch_or(bf16_, false));
  const std::optional<ForeignKey>& unread = third ? gathered_ : prefetched_;
  if (unread) file_.without_effect(*unread);
  const ForeignKey* least = nullptr;
  double elements = 0;
  for (const auto* key : {third ? &prefetched_ : &gathered_, &reduced_}) {
    if (!*key) continue;
    OFSDP_ASSIGN_OR_RETURN(const double size, number_of(**key));
    if (size < 0) return expected(**key, "a number of at least 0");
    if (least == nullptr || size < elements) least = &**key, elements = size;
  }
  if (least == nullptr) return ok_status();
  const double bytes = elements * (half || brain ? 2 : 4);
  return file_.set("bucket-mb", show_number(bytes / (1 << 20)), *least);
}

Status DeepSpeedKeys::resolve() {
  OFSDP_RETURN_IF_ERROR(resolve_stage());
  OFSDP_RETURN_IF_ERROR(resolve_offload());
  OFSDP_RETURN_IF_ERROR(resolve_precision());
  OFSDP_RETURN_IF_ERROR(resolve_buckets());
  if (clipping_) {
    OFSDP_ASSIGN_OR_RETURN(const double most, number_of(*clipping_));
    OFSDP_RETURN_IF_ERROR(
        file_.set("clip-grad-norm", most == 0 ? "off" : clipping_->value.Scalar(), *clipping_));
  }
  return Training(file_).read(optimizer_, scheduler_);
}

Status read_deepspeed_config(const std::string& path, Source source, OptionReader& reader) {
  return without_yaml_exceptions(path, "JSON", [&]() -> Status {
    OFSDP_ASSIGN_OR_RETURN(const YAML::Node root, read_document(path, "JSON"));
    if (!root.IsMap()) return input_error("{}: expected an object of DeepSpeed's keys", path);
    ForeignFile file(path, "DeepSpeed", source, reader);
    DeepSpeedKeys keys(file);
    OFSDP_RETURN_IF_ERROR(file.read(root, "", keys.rules()));
    OFSDP_RETURN_IF_ERROR(keys.resolve());
    file.finish();
    return ok_status();
  });
}

}  // namespace ofsdp::cli
