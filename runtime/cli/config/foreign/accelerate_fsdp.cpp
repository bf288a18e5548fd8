#include "runtime/cli/config/foreign/accelerate_fsdp.h"

#include <cctype>

namespace ofsdp::cli {
namespace {

// In the order of PyTorch's and Accelerate's numbers, which count from 1.
std::vector<std::string> shardings() {
  return {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
}
constexpr std::string_view kStrategies[] = {"full_shard", "shard_grad_op", "no_shard",
                                            "hybrid_shard", "hybrid_shard_zero2"};

// FSDP2's true and false say whether parameters are gathered again in backward, and no more.
bool same_resharding(std::string_view named, std::string_view reshards) {
  const bool again = named == "full_shard" || named == "hybrid_shard";
  return again == (reshards == "full_shard");
}

// The position of the value among `names`, or of the number (from 1) that older files have, with a
// warning.
Result<size_t> numbered(ForeignFile& file, const ForeignKey& key,
                        const std::vector<std::string>& names) {
  const auto number =
      key.value.IsScalar() ? parse_integer(key.value.Scalar()) : std::optional<int64_t>();
  if (!number || *number < 1 || *number > static_cast<int64_t>(names.size())) {
    return choice_of(key, names);
  }
  const auto which = static_cast<size_t>(*number - 1);
  file.warn(key,
            format_text("a number is deprecated by Accelerate; {} says the same", names[which]));
  return which;
}

// The strategy that Accelerate's keys mean: FSDP1's names and numbers, FSDP2's true and false, and
// the mesh of `parallelism_config` (replicas x shards is hybrid_shard). FsdpSection fills in the
// keys.
struct FsdpStrategy {
  std::optional<ForeignKey> version, sharding, reshard, replicate, shard, processes;

  bool second() const { return version && version->is("2"); }
  Status resolve(ForeignFile& file) const;

 private:
  Result<std::string> resharding(ForeignFile& file) const;
  Status resolve_mesh(ForeignFile& file, std::optional<std::string> said) const;
  Status check_world(int64_t replicas, int64_t shards) const;
};

Status FsdpStrategy::resolve(ForeignFile& file) const {
  if (version) OFSDP_RETURN_IF_ERROR(choice_of(*version, {"1", "2"}).status());
  std::optional<std::string> said;
  if (sharding) {
    OFSDP_ASSIGN_OR_RETURN(const size_t which, numbered(file, *sharding, shardings()));
    if (second()) {
      file.warn(*sharding,
                "deprecated by Accelerate beside fsdp_version: 2; "
                "fsdp_reshard_after_forward takes its place");
    }
    said = kStrategies[which];
  }
  if (reshard) {
    OFSDP_ASSIGN_OR_RETURN(const std::string strategy, resharding(file));
    const bool agree = !said || *said == strategy || (second() && same_resharding(*said, strategy));
    if (!agree) {
      return contradiction(*reshard, *sharding,
                           format_text("{} here and {} there", strategy, *said));
    }
    if (!said) said = strategy;
  }
  return resolve_mesh(file, said);
}

Result<std::string> FsdpStrategy::resharding(ForeignFile& file) const {
  const Result<bool> on = switch_of(*reshard);
  const bool digit = reshard->value.IsScalar() && parse_integer(reshard->value.Scalar());
  if (second()) {
    if (!on.ok() || digit) return expected(*reshard, "true or false beside fsdp_version: 2");
    return std::string(*on ? "full_shard" : "shard_grad_op");
  }
  if (on.ok() && !digit) {
    return input_error("{}: true and false are of fsdp_version: 2: expected one of {} beside {}",
                       reshard->subject, joined(shardings(), ", "),
                       version ? version->subject : std::string("no fsdp_version"));
  }
  OFSDP_ASSIGN_OR_RETURN(const size_t which, numbered(file, *reshard, shardings()));
  return std::string(kStrategies[which]);
}

Status FsdpStrategy::resolve_mesh(ForeignFile& file, std::optional<std::string> said) const {
  OFSDP_ASSIGN_OR_RETURN(const int64_t replicas, count_or(replicate, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(const int64_t shards, count_or(shard, 1, 1));
  const ForeignKey* by = reshard ? &*reshard : sharding ? &*sharding : nullptr;
  if (replicas > 1) {
    by = &*replicate;
    const bool keeps = said && !same_resharding(*said, "full_shard");
    if (shards > 1) OFSDP_RETURN_IF_ERROR(file.set("shard-size", shards, *shard));
    said = shards == 1 ? "no_shard" : keeps ? "hybrid_shard_zero2" : "hybrid_shard";
  }
  if (replicas * shards > 1) OFSDP_RETURN_IF_ERROR(check_world(replicas, shards));
  return said ? file.set("strategy", *said, *by) : ok_status();
}

Status FsdpStrategy::check_world(int64_t replicas, int64_t shards) const {
  if (!processes) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const int64_t world, count_of(*processes, -1));
  if (world <= 0 || world == replicas * shards) return ok_status();
  return contradiction(*processes, shards > 1 ? *shard : *replicate,
                       format_text("{} x {} ranks are in the mesh", replicas, shards));
}

}  // namespace

std::optional<std::vector<std::string>> ignored_globs(std::string_view expression) {
  std::vector<std::string> globs(1);
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    if (c == '|') {
      globs.emplace_back();
    } else if (c == '\\' && next == '.') {
      globs.back() += '.', ++i;
    } else if (c == '.' && next == '*') {
      globs.back() += '*', ++i;
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.') {
      globs.back() += c;
    } else {
      return std::nullopt;
    }
  }
  for (std::string& glob : globs) {
    if (glob.empty()) return std::nullopt;
    glob += ".*";  // the parameters of the module
  }
  return globs;
}

namespace {

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
    OFSDP_RETURN_IF_ERROR(strategy_.resolve(file_));
    OFSDP_RETURN_IF_ERROR(resolve_wrap());
    OFSDP_RETURN_IF_ERROR(resolve_prefetch());
    return resolve_state();
  }

 private:
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
    std::vector<KeyRule> rules = {
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
    };
    add_without_effect(rules,
                       "fsdp_use_orig_params fsdp_limit_all_gathers fsdp_param_init_fn "
                       "fsdp_state_dict_config fsdp_optim_state_dict_config fsdp_xla "
                       "fsdp_xla_fsdp_v2 fsdp_xla_fsdp_grad_ckpt fsdp_xla_fsdp_settings");
    return rules;
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
    std::vector<KeyRule> rules = {keep("parallelism_config_dp_replicate_size", strategy_.replicate),
                                  keep("parallelism_config_dp_shard_size", strategy_.shard),
                                  only_one("parallelism_config_tp_size"),
                                  only_one("parallelism_config_cp_size"),
                                  only_one("parallelism_config_sp_size")};
    add_without_effect(rules,
                       "parallelism_config_cp_comm_strategy parallelism_config_cp_backend "
                       "parallelism_config_sp_backend parallelism_config_sp_seq_length "
                       "parallelism_config_sp_seq_length_is_variable "
                       "parallelism_config_sp_attn_implementation");
    return rules;
  }

  bool second() const { return strategy_.second(); }

  // Sets our option to the meaning of the key's name or number, and returns its position.
  Result<size_t> set_numbered(const std::string& option, const ForeignKey& key,
                              const std::vector<std::pair<std::string, std::string>>& meanings) {
    std::vector<std::string> names;
    for (const auto& [name, meaning] : meanings) names.push_back(name);
    OFSDP_ASSIGN_OR_RETURN(const size_t which, numbered(file_, key, names));
    OFSDP_RETURN_IF_ERROR(file_.set(option, meanings[which].second, key));
    return which;
  }

  Status resolve_wrap() {
    size_t policy = 0;
    if (wrap_) {
      OFSDP_ASSIGN_OR_RETURN(policy, set_numbered("wrap", *wrap_,
                                                  {{"TRANSFORMER_BASED_WRAP", "transformer"},
                                                   {"SIZE_BASED_WRAP", "size"},
                                                   {"NO_WRAP", "none"}}));
    }
    if (layers_ && policy == 0) OFSDP_RETURN_IF_ERROR(set_layers());
    if (layers_ && policy != 0) file_.without_effect(*layers_);
    if (!least_) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(const int64_t least, count_of(*least_, 0));
    if (policy == 2) {
      file_.without_effect(*least_);
      return ok_status();
    }
    return file_.set("min-params", least, *least_);
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

  Status resolve_prefetch() {
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
    return set_numbered(
               "backward-prefetch", *backward_,
               {{"BACKWARD_PRE", "pre"}, {"BACKWARD_POST", "post"}, {"NO_PREFETCH", "none"}})
        .status();
  }

  Status resolve_state() {
    if (state_) {
      OFSDP_ASSIGN_OR_RETURN(const size_t which, set_numbered("checkpoint-type", *state_,
                                                              {{"FULL_STATE_DICT", "full"},
                                                               {"LOCAL_STATE_DICT", "local"},
                                                               {"SHARDED_STATE_DICT", "sharded"}}));
      if (which == 1 && second()) {
        return contradiction(*state_, *strategy_.version,
                             "FSDP2 has FULL_STATE_DICT and SHARDED_STATE_DICT");
      }
    }
    OFSDP_ASSIGN_OR_RETURN(const bool loading, switch_or(loading_, false));
    OFSDP_ASSIGN_OR_RETURN(const bool sync, switch_or(sync_, true));
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
    const std::vector<std::string> words = {"fp32", "fp16", "bf16", "no"};
    const std::vector<std::string> dtypes = {"float32", "float16", "bfloat16", "float32"};
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
    std::vector<KeyRule> rules = {dtype("param_dtype", "param-dtype"),
                                  dtype("reduce_dtype", "reduce-dtype"),
                                  dtype("buffer_dtype", "buffer-dtype")};
    add_without_effect(rules,
                       "output_dtype cast_forward_inputs cast_root_forward_inputs "
                       "keep_low_precision_grads");
    return file_.read_section(key, rules);
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
