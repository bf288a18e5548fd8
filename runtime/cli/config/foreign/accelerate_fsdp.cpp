#include "runtime/cli/config/foreign/accelerate_fsdp.h"

#include "runtime/cli/config/foreign/accelerate_strategy.h"
#include "runtime/cli/config/foreign/ignored_modules.h"

namespace ofsdp::cli {
namespace {

using Names = std::vector<std::string>;

class FsdpSection {
 public:
  FsdpSection(ForeignFile& file, const std::optional<ForeignKey>& processes) : file_(file) {
    strategy_.processes = processes;
  }

  Status read(const std::optional<ForeignKey>& fsdp, const std::optional<ForeignKey>& parallelism) {
    if (fsdp) OFSDP_RETURN_IF_ERROR(file_.read_section(*fsdp, rules(), "fsdp_"));
    if (parallelism) {
      OFSDP_RETURN_IF_ERROR(file_.read_section(*parallelism, mesh_rules(), "parallelism_config_"));
    }
    OFSDP_RETURN_IF_ERROR(strategy_.settle(file_));
    OFSDP_RETURN_IF_ERROR(settle_wrap());
    OFSDP_RETURN_IF_ERROR(settle_prefetch());
    return settle_state();
  }

 private:
  KeyRule keep(std::string_view name, std::optional<ForeignKey>& at) {
    return {name, [&at](const ForeignKey& key) {
              at = key;
              return ok_status();
            }};
  }

  // An older or the plug-in's own name of another key.
  KeyRule alias(std::string_view name, std::optional<ForeignKey>& at, std::string now) {
    return {name, [this, &at, now = std::move(now)](const ForeignKey& key) {
              file_.warn(key, format_text("Accelerate reads {}, and this key no more", now));
              if (at) return contradiction(key, *at, "one key with two names");
              at = key;
              return ok_status();
            }};
  }

  // On or off, as `on` and `off` of our option.
  KeyRule option(std::string_view name, std::string option, std::string on, std::string off) {
    return {name, [this, option, on, off](const ForeignKey& key) -> Status {
              OFSDP_ASSIGN_OR_RETURN(const bool value, switch_of(key));
              return file_.set(option, value ? on : off, key);
            }};
  }

  std::vector<KeyRule> rules() {
    return {
        keep("fsdp_version", strategy_.version),
        keep("fsdp_sharding_strategy", strategy_.sharding),
        keep("fsdp_reshard_after_forward", strategy_.reshard),
        option("fsdp_offload_params", "cpu-offload", "params", "none"),
        option("fsdp_cpu_offload", "cpu-offload", "params", "none"),
        keep("fsdp_auto_wrap_policy", wrap_),
        keep("fsdp_transformer_layer_cls_to_wrap", layers_),
        alias("fsdp_transformer_cls_names_to_wrap", layers_, "fsdp_transformer_layer_cls_to_wrap"),
        keep("fsdp_min_num_params", least_),
        keep("fsdp_backward_prefetch", backward_),
        alias("fsdp_backward_prefetch_policy", backward_, "fsdp_backward_prefetch"),
        keep("fsdp_forward_prefetch", forward_),
        keep("fsdp_state_dict_type", state_),
        keep("fsdp_sync_module_states", sync_),
        keep("fsdp_cpu_ram_efficient_loading", loading_),
        option("fsdp_activation_checkpointing", "activation-checkpointing", "unit", "none"),
        {"fsdp_ignored_modules", [this](const ForeignKey& key) { return ignore(key); }},
        {"fsdp_mixed_precision_policy", [this](const ForeignKey& key) { return precision(key); }},
        {"fsdp_use_orig_params", {}},
        {"fsdp_limit_all_gathers", {}},
        {"fsdp_param_init_fn", {}},
        {"fsdp_state_dict_config", {}},
        {"fsdp_optim_state_dict_config", {}},
        {"fsdp_xla", {}},
        {"fsdp_xla_fsdp_v2", {}},
        {"fsdp_xla_fsdp_grad_ckpt", {}},
        {"fsdp_xla_fsdp_settings", {}}};
  }

  std::vector<KeyRule> mesh_rules() {
    const auto only_one = [](std::string_view name) {
      return KeyRule{name, [](const ForeignKey& key) -> Status {
                       OFSDP_ASSIGN_OR_RETURN(const int64_t size, count_of(key, 1));
                       if (size == 1) return ok_status();
                       return input_error(
                           "{}: data parallelism alone is offered: expected 1, "
                           "found {}",
                           key.subject, size);
                     }};
    };
    return {keep("parallelism_config_dp_replicate_size", strategy_.replicate),
            keep("parallelism_config_dp_shard_size", strategy_.shard),
            only_one("parallelism_config_tp_size"),
            only_one("parallelism_config_cp_size"),
            only_one("parallelism_config_sp_size"),
            {"parallelism_config_cp_comm_strategy", {}},
            {"parallelism_config_cp_backend", {}},
            {"parallelism_config_sp_backend", {}},
            {"parallelism_config_sp_seq_length", {}},
            {"parallelism_config_sp_seq_length_is_variable", {}},
            {"parallelism_config_sp_attn_implementation", {}}};
  }

  bool second() const { return strategy_.second(); }

  Status settle_wrap() {
    size_t policy = 0;
    if (wrap_) {
      OFSDP_ASSIGN_OR_RETURN(
          policy,
          numbered(file_, *wrap_, {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}));
      static constexpr std::string_view kPolicies[] = {"transformer", "size", "none"};
      OFSDP_RETURN_IF_ERROR(file_.set("wrap", std::string(kPolicies[policy]), *wrap_));
    }
    if (layers_ && policy == 0) OFSDP_RETURN_IF_ERROR(set_layers());
    if (layers_ && policy != 0) file_.without_effect(*layers_);
    if (!least_) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(const int64_t least, count_of(*least_, 0));
    if (policy == 2) {
      file_.without_effect(*least_);
      return ok_status();
    }
    return file_.set("min-params", format_text("{}", least), *least_);
  }

  Status set_layers() {
    std::string names;
    if (layers_->value.IsSequence()) {
      for (const YAML::Node& item : layers_->value) {
        if (!item.IsScalar()) return expected(*layers_, "class names");
        names += (names.empty() ? "" : ",") + item.Scalar();
      }
    } else {
      OFSDP_ASSIGN_OR_RETURN(names, text_of(*layers_));
    }
    // Empty: the model's own _no_split_modules, which is what `auto` finds.
    return file_.set("wrap-layers", names.empty() ? "auto" : names, *layers_);
  }

  Status settle_prefetch() {
    if (forward_) {
      OFSDP_ASSIGN_OR_RETURN(const bool on, switch_of(*forward_));
      if (second()) file_.warn(*forward_, "Accelerate refuses this key beside fsdp_version: 2");
      OFSDP_RETURN_IF_ERROR(file_.set("forward-prefetch", on ? "on" : "off", *forward_));
    }
    if (!backward_) return ok_status();
    if (second()) {
      file_.without_effect(*backward_);  // removed in FSDP2
      return ok_status();
    }
    OFSDP_ASSIGN_OR_RETURN(
        const size_t which,
        numbered(file_, *backward_, {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}));
    static constexpr std::string_view kPrefetches[] = {"pre", "post", "none"};
    return file_.set("backward-prefetch", std::string(kPrefetches[which]), *backward_);
  }

  Status settle_state() {
    if (state_) {
      OFSDP_ASSIGN_OR_RETURN(
          const size_t which,
          numbered(file_, *state_, {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}));
      if (which == 1 && second()) {
        return contradiction(*state_, *strategy_.version,
                             "FSDP2 has FULL_STATE_DICT and SHARDED_STATE_DICT");
      }
      static constexpr std::string_view kTypes[] = {"full", "local", "sharded"};
      OFSDP_RETURN_IF_ERROR(file_.set("checkpoint-type", std::string(kTypes[which]), *state_));
    }
    bool loading = false, sync = true;
    if (loading_) {
      OFSDP_ASSIGN_OR_RETURN(loading, switch_of(*loading_));
    }
    if (sync_) {
      OFSDP_ASSIGN_OR_RETURN(sync, switch_of(*sync_));
    }
    if (loading && !sync && !second()) {
      return contradiction(*loading_, *sync_, "the first needs the second to be true");
    }
    if (loading_) file_.without_effect(*loading_);
    if (sync_) file_.without_effect(*sync_);
    return ok_status();
  }

  Status ignore(const ForeignKey& key) {
    OFSDP_ASSIGN_OR_RETURN(const std::string expression, text_of(key));
    const auto globs = ignored_globs(expression);
    if (!globs) return expected(key, "module names with . , .* and | alone");
    for (const std::string& glob : *globs) OFSDP_RETURN_IF_ERROR(file_.set("ignore", glob, key));
    return ok_status();
  }

  Status precision(const ForeignKey& key) {
    const Names words = {"fp32", "fp16", "bf16", "no"};
    const Names dtypes = {"float32", "float16", "bfloat16", "float32"};
    if (!key.value.IsMap()) {
      OFSDP_ASSIGN_OR_RETURN(const size_t which, choice_of(key, words));
      return set_precision(file_, key, dtypes[which]);
    }
    const auto dtype = [this](std::string_view name, std::string option) {
      return KeyRule{name, [this, option](const ForeignKey& one) -> Status {
                       OFSDP_ASSIGN_OR_RETURN(std::string text, text_of(one));
                       if (text.starts_with("torch.")) text = text.substr(6);
                       return file_.set(option, text, one);
                     }};
    };
    return file_.read_section(key, {dtype("param_dtype", "param-dtype"),
                                    dtype("reduce_dtype", "reduce-dtype"),
                                    dtype("buffer_dtype", "buffer-dtype"),
                                    {"output_dtype", {}},
                                    {"cast_forward_inputs", {}},
                                    {"cast_root_forward_inputs", {}},
                                    {"keep_low_precision_grads", {}}});
  }

  ForeignFile& file_;
  FsdpStrategy strategy_;
  std::optional<ForeignKey> wrap_, layers_, least_, backward_, forward_, state_, sync_, loading_;
};

}  // namespace

Status read_accelerate_fsdp(ForeignFile& file, const std::optional<ForeignKey>& fsdp,
                            const std::optional<ForeignKey>& parallelism,
                            const std::optional<ForeignKey>& processes) {
  return FsdpSection(file, processes).read(fsdp, parallelism);
}

}  // namespace ofsdp::cli
