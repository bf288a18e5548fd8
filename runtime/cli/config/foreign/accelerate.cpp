#include <algorithm>
#include <cctype>
#include <filesystem>

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

namespace {

// In the order of PyTorch's and Accelerate's numbers, which start at 1.
std::vector<std::string> shardings() {
  return {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
}
constexpr std::string_view kStrategies[] = {"full_shard", "shard_grad_op", "no_shard",
                                            "hybrid_shard", "hybrid_shard_zero2"};

// FSDP2's true and false only say whether parameters are gathered again in backward.
bool same_resharding(std::string_view named, std::string_view reshards) {
  const bool again = named == "full_shard" || named == "hybrid_shard";
  return again == (reshards == "full_shard");
}

// Returns the index of the value in `names`; older files have the number (from 1), which gives a
// warning.
Result<size_t> numbered(ForeignFile& file, const ForeignKey& key,
                        const std::vector<std::string>& names) {
  const auto number =
      key.value.IsScalar() ? parse_integer(key.value.Scalar()) : std::optional<int64_t>();
  if (!number || *number < 1 || *number > static_cast<int64_t>(names.size())) {
    return read_choice(key, names);
  }
  const auto which = static_cast<size_t>(*number - 1);
  file.warn(key,
            format_text("a number is deprecated by Accelerate; {} says the same", names[which]));
  return which;
}

// The strategy by Accelerate's keys: names and numbers of FSDP1, true and false of FSDP2, and the
// mesh of `parallelism_config` (replicas x shards is hybrid_shard). FsdpSection fills in the keys.
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
  if (version) OFSDP_RETURN_IF_ERROR(read_choice(*version, {"1", "2"}).status());
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
  // An older name of another key, or the name that the plug-in uses.
  KeyRule alias(std::string_view name, std::optional<ForeignKey>& at, std::string now) {
    return {name, [this, &at, now = std::move(now)](const ForeignKey& key) {
              file_.warn(key, format_text("Accelerate reads {}, and this key no more", now));
              if (at) return contradiction(key, *at, "one key with two names");
              at = key;
              return ok_status();
            }};
  }

  // A switch that sets our option to `on` or `off`.
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

  // Sets our option to the meaning of the key's name or number, and returns the index.
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
    // Empty means the model's _no_split_modules, which `auto` finds.
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
      OFSDP_ASSIGN_OR_RETURN(const size_t which, read_choice(key, words));
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

namespace {

bool holds_something(const std::optional<ForeignKey>& key) {
  return key && (!key->value.IsMap() || key->value.size() > 0);
}

// The path is relative to the file that names it, or to the current folder.
Status read_deepspeed_file(ForeignFile& file, const ForeignKey& key) {
  if (key.is("none")) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const std::string name, text_of(key));
  std::error_code ignored;
  const std::filesystem::path beside = std::filesystem::path(file.path()).parent_path() / name;
  const bool here =
      !std::filesystem::exists(beside, ignored) && std::filesystem::exists(name, ignored);
  return read_deepspeed_config(here ? name : beside.lexically_normal().string(), file.source(),
                               file.reader());
}

std::vector<KeyRule> short_rules(ForeignFile& file, DeepSpeedKeys& keys) {
  std::vector<KeyRule> rules = {keep("zero_stage", keys.stage, true),
                                keep("offload_optimizer_device", keys.offload_optimizer, true),
                                keep("offload_param_device", keys.offload_param, true),
                                file.copies("deepspeed_hostfile", "hostfile"),
                                file.copies("deepspeed_inclusion_filter", "include"),
                                file.copies("deepspeed_exclusion_filter", "exclude"),
                                {"deepspeed_config_file", [&file](const ForeignKey& key) {
                                   return read_deepspeed_file(file, key);
                                 }}};
  add_without_effect(rules,
                     "zero3_init_flag zero3_save_16bit_model offload_optimizer_nvme_path "
                     "offload_param_nvme_path deepspeed_multinode_launcher "
                     "deepspeed_moe_layer_cls_names");
  return rules;
}

// `deepspeed_config` holds short keys, the name of a DeepSpeed file, or DeepSpeed's own keys.
Status read_accelerate_deepspeed(ForeignFile& file, const ForeignKey& section) {
  if (section.value.IsScalar()) return read_deepspeed_file(file, section);
  DeepSpeedKeys keys(file);
  std::vector<KeyRule> rules = short_rules(file, keys);
  for (KeyRule& rule : keys.rules()) rules.push_back(std::move(rule));
  OFSDP_RETURN_IF_ERROR(file.read_section(section, rules));
  return keys.resolve();
}

class TopLevel {
 public:
  explicit TopLevel(ForeignFile& file) : file_(file) {}

  Status read(const std::vector<ForeignKey>& keys) {
    const std::vector<KeyRule> all = rules();
    for (const ForeignKey& key : keys) {
      OFSDP_RETURN_IF_ERROR(file_.read_one(key, key.path, all));
    }
    OFSDP_RETURN_IF_ERROR(resolve_precision());
    OFSDP_RETURN_IF_ERROR(resolve_hosts());
    OFSDP_RETURN_IF_ERROR(resolve_kind());
    file_.finish();
    return ok_status();
  }

  std::vector<KeyRule> rules() {
    std::vector<KeyRule> all = {
        {"compute_environment", [](const ForeignKey& key) { return local_machine(key); }},
        keep("distributed_type", kind_),
        keep("mixed_precision", precision_),
        keep("fp16", fp16_),
        keep("use_cpu", use_cpu_),
        keep("num_processes", processes_),
        keep("num_machines", machines_),
        keep("machine_rank", machine_rank_),
        keep("main_process_ip", address_),
        keep("main_process_port", port_),
        keep("fsdp_config", fsdp_),
        keep("parallelism_config", parallelism_),
        keep("deepspeed_config", deepspeed_),
        keep("deepspeed_config_file", deepspeed_file_)};
    add_without_effect(all,
                       "command_file commands debug downcast_bf16 dynamo_backend dynamo_config "
                       "enable_cpu_affinity fp8_config gpu_ids ipex_config main_training_function "
                       "megatron_lm_config mpirun_config rdzv_backend same_network tpu_env "
                       "tpu_name tpu_use_cluster tpu_use_sudo tpu_vm tpu_zone");
    return all;
  }

 private:
  static Status local_machine(const ForeignKey& key) {
    return key.is("LOCAL_MACHINE") ? ok_status() : expected(key, "LOCAL_MACHINE");
  }

  Status resolve_precision() {
    if (fp16_) {
      OFSDP_ASSIGN_OR_RETURN(const bool on, switch_of(*fp16_));
      file_.warn(*fp16_, "deprecated by Accelerate; mixed_precision: fp16 says the same");
      if (on) OFSDP_RETURN_IF_ERROR(set_precision(file_, *fp16_, "float16"));
    }
    if (!precision_) return ok_status();
    if (precision_->is("fp8")) {
      return input_error("{}: fp8 is not offered here: expected no, fp16 or bf16",
                         precision_->subject);
    }
    // YAML 1.1 reads an unquoted `no` as false.
    OFSDP_ASSIGN_OR_RETURN(const size_t which,
                           read_choice(*precision_, {"no", "false", "fp16", "bf16"}));
    const char* const dtypes[] = {"float32", "float32", "float16", "bfloat16"};
    return set_precision(file_, *precision_, dtypes[which]);
  }

  Status resolve_hosts() {
    // Words of the command line may stand next to a file that has given the number.
    const int64_t so_far = file_.is_of_flags() ? file_.reader().hosts() : 1;
    OFSDP_ASSIGN_OR_RETURN(const int64_t machines, count_or(machines_, 1, so_far));
    if (machine_rank_) {
      OFSDP_ASSIGN_OR_RETURN(const int64_t rank, count_of(*machine_rank_, 0));
      if (rank >= machines) {
        if (machines_) return contradiction(*machine_rank_, *machines_, "hosts count from 0");
        const std::string most =
            machines == 1 ? "0 beside one machine" : format_text("0 to {}", machines - 1);
        return input_error("{}: expected {}, found {}", machine_rank_->subject, most, rank);
      }
    }
    if (processes_) OFSDP_RETURN_IF_ERROR(resolve_processes(machines));
    if (machines > 1) return resolve_many_hosts();
    if (machines_ && file_.is_of_flags()) {
      OFSDP_RETURN_IF_ERROR(file_.set("nnodes", machines, *machines_));
    }
    for (const auto* key : {&address_, &port_}) {
      if (*key && file_.is_of_flags()) file_.without_effect(**key);
    }
    return ok_status();
  }

  // num_processes is the world size; -1 leaves it to the launcher.
  Status resolve_processes(int64_t machines) {
    OFSDP_ASSIGN_OR_RETURN(const int64_t world, count_of(*processes_, -1));
    if (world == -1) return ok_status();
    if (world == 0) return expected(*processes_, "a whole number of at least 1");
    if (world % machines != 0 && !machines_) {
      return input_error("{}: expected a multiple of the {} machines, found {}",
                         processes_->subject, machines, world);
    }
    if (world % machines != 0) {
      return contradiction(*processes_, *machines_, "as many ranks on each host are expected");
    }
    return file_.set("nproc-per-node", world / machines, *processes_);
  }

  Status resolve_many_hosts() {
    if (machines_) {
      OFSDP_RETURN_IF_ERROR(file_.set("nnodes", machines_->value.Scalar(), *machines_));
    }
    if (machine_rank_) {
      OFSDP_RETURN_IF_ERROR(file_.set("node-rank", machine_rank_->value.Scalar(), *machine_rank_));
    }
    // A word may change only the port.
    std::string endpoint = port_ && file_.is_of_flags() ? file_.reader().meeting_host() : "";
    if (address_) {
      OFSDP_ASSIGN_OR_RETURN(endpoint, text_of(*address_));
    }
    if (endpoint.empty()) return ok_status();
    if (port_) {
      OFSDP_ASSIGN_OR_RETURN(const int64_t port, count_of(*port_, 1));
      endpoint += format_text(":{}", port);
    }
    return file_.set("rdzv-endpoint", endpoint, address_ ? *address_ : *port_);
  }

  // Requires the section that distributed_type selects; a section of another kind would have no
  // effect.
  Status resolve_kind() {
    if (use_cpu_) {
      OFSDP_ASSIGN_OR_RETURN(const bool cpu, switch_of(*use_cpu_));
      if (cpu) OFSDP_RETURN_IF_ERROR(file_.set("device", "cpu", *use_cpu_));
      if (cpu && kind_ && kind_->is("MULTI_GPU")) {
        return contradiction(*use_cpu_, *kind_, "MULTI_GPU computes on GPUs");
      }
    }
    if (kind_) OFSDP_RETURN_IF_ERROR(check_kind());
    if (holds_something(fsdp_) || holds_something(parallelism_)) {
      OFSDP_RETURN_IF_ERROR(read_accelerate_fsdp(file_, fsdp_, parallelism_, processes_));
    }
    if (holds_something(deepspeed_)) {
      OFSDP_RETURN_IF_ERROR(read_accelerate_deepspeed(file_, *deepspeed_));
    }
    return deepspeed_file_ ? read_deepspeed_file(file_, *deepspeed_file_) : ok_status();
  }

  Status check_kind() {
    const bool fsdp = kind_->is("FSDP"), deepspeed = kind_->is("DEEPSPEED");
    if (holds_something(fsdp_) && !fsdp) return contradiction(*fsdp_, *kind_, "expected FSDP");
    for (const auto* section : {&deepspeed_, &deepspeed_file_}) {
      if (holds_something(*section) && !deepspeed) {
        return contradiction(**section, *kind_, "expected DEEPSPEED");
      }
    }
    if (fsdp || deepspeed) return ok_status();
    if (kind_->is("NO")) {
      const bool many = processes_ && count_of(*processes_, 2).ok();
      return many ? contradiction(*processes_, *kind_, "one process is expected") : ok_status();
    }
    const std::vector<std::string> kKinds = {
        "MULTI_CPU", "MULTI_GPU",  "MULTI_XPU",    "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA",
        "MULTI_HPU", "MULTI_MUSA", "MULTI_NEURON", "FSDP",      "DEEPSPEED", "NO"};
    OFSDP_RETURN_IF_ERROR(read_choice(*kind_, kKinds).status());
    return file_.set("strategy", "no_shard", *kind_);  // DistributedDataParallel
  }

  ForeignFile& file_;
  std::optional<ForeignKey> kind_, precision_, fp16_, use_cpu_, processes_, machines_,
      machine_rank_, address_, port_, fsdp_, parallelism_, deepspeed_, deepspeed_file_;
};

}  // namespace

Status set_precision(ForeignFile& file, const ForeignKey& key, const std::string& dtype) {
  OFSDP_RETURN_IF_ERROR(file.set("param-dtype", dtype, key));
  OFSDP_RETURN_IF_ERROR(file.set("reduce-dtype", dtype, key));
  return file.set("buffer-dtype", dtype, key);
}

std::vector<std::string> accelerate_key_names() {
  OptionReader reader;
  ForeignFile file("", "", Source::kDefault, reader);
  std::vector<std::string> names;
  for (const KeyRule& rule : TopLevel(file).rules()) names.emplace_back(rule.name);
  return names;
}

bool is_accelerate_key(std::string_view name) {
  const std::vector<std::string> names = accelerate_key_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status read_accelerate(ForeignFile& file, const std::vector<ForeignKey>& keys) {
  return TopLevel(file).read(keys);
}

}  // namespace ofsdp::cli
