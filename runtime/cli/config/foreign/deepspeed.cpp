#include "runtime/cli/config/foreign/deepspeed.h"

#include "runtime/cli/config/foreign/accelerate_fsdp.h"
#include "runtime/cli/config/foreign/deepspeed_training.h"

namespace ofsdp::cli {
namespace {

Result<bool> on(const std::optional<ForeignKey>& key) {
  return key ? switch_of(*key) : Result<bool>(false);
}

}  // namespace

KeyRule DeepSpeedKeys::keep(std::string_view name, std::optional<ForeignKey>& at) {
  return {name, [&at](const ForeignKey& key) {
            if (!key.automatic()) at = key;
            return ok_status();
          }};
}

KeyRule DeepSpeedKeys::effect(std::string_view name, std::string option) {
  return {name, [this, option = std::move(option)](const ForeignKey& key) -> Status {
            if (key.automatic()) return ok_status();
            OFSDP_ASSIGN_OR_RETURN(const std::string text, text_of(key));
            return file_.set(option, text, key);
          }};
}

// Something that would change what is computed, and is not offered.
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
            std::vector<KeyRule> rules = {keep("enabled", enabled)};
            rules.push_back({"loss_scale", [](const ForeignKey& scale) -> Status {
                               if (scale.automatic()) return ok_status();
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

Status DeepSpeedKeys::communication_type(const ForeignKey& key) {
  const std::vector<std::string> kNames = {"fp32", "fp16", "bf16", "bfp16"};
  static constexpr std::string_view kDTypes[] = {"float32", "float16", "bfloat16", "bfloat16"};
  OFSDP_ASSIGN_OR_RETURN(const size_t which, choice_of(key, kNames));
  return file_.set("reduce-dtype", std::string(kDTypes[which]), key);
}

// The section is there in many files with everything off; DeepSpeed itself is then told by the model.
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
      effect("train_batch_size", "global-batch-size"),
      effect("train_micro_batch_size_per_gpu", "batch-size"),
      effect("gradient_accumulation_steps", "grad-accum"),
      keep("gradient_clipping", clipping),
      effect("dataloader_drop_last", "drop-last"),
      {"steps_per_print",
       [this](const ForeignKey& key) -> Status {
         if (key.automatic() || key.is("inf") || key.is(".inf")) return ok_status();
         OFSDP_ASSIGN_OR_RETURN(const int64_t steps, count_of(key, 1));
         return file_.set("log-interval", format_text("{}", steps), key);
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

}  // namespace ofsdp::cli
