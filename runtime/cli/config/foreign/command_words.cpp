
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {
namespace {

using Kind = CommandWord::Kind;

struct Alias {
  std::string_view word;  // without dashes, '_' replaced by '-'
  std::string_view flag;
  std::string_view value = {};  // for a bare word
};

constexpr auto kAliases = std::to_array<Alias>({
    {"H", "hostfile"},
    {"i", "include"},
    {"e", "exclude"},
    {"bucket_cap_mb", "bucket-mb"},
    {"config_file", "config"},
    {"cpu", "device", "cpu"},
    {"ddp_bucket_cap_mb", "bucket-mb"},
    {"deepspeed_exclusion_filter", "exclude"},
    {"deepspeed_hostfile", "hostfile"},
    {"deepspeed_inclusion_filter", "include"},
    {"gradient_accumulation_steps", "grad-accum"},
    {"gradient_clipping", "clip-grad-norm"},
    {"master_addr", "master-addr"},
    {"master_port", "master-port"},
    {"max_restarts", "max-restarts"},
    {"min_elastic_nodes", "min-nodes"},
    {"mpirun_hostfile", "hostfile"},
    {"no_ssh", "no-ssh", "on"},
    {"node_rank", "node-rank"},
    {"nproc_per_node", "nproc-per-node"},
    {"num_accelerators", "nproc-per-node"},
    {"num_cpu_threads_per_process", "threads"},
    {"num_gpus", "nproc-per-node"},
    {"num_nodes", "nnodes"},
    {"rdzv_backend", "rdzv-backend"},
    {"rdzv_endpoint", "rdzv-endpoint"},
    {"rdzv_id", "rdzv-id"},
});

// Keys of Accelerate's files and their sections that are words with a value.
constexpr std::string_view kTopKeys =
    " mixed_precision num_processes num_machines machine_rank main_process_ip main_process_port "
    "main_training_function gpu_ids dynamo_backend ";
constexpr std::string_view kDeepSpeedKeys =
    " zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path "
    "offload_param_nvme_path zero3_init_flag zero3_save_16bit_model deepspeed_multinode_launcher "
    "deepspeed_moe_layer_cls_names ";
// Words that select a section or a file; `fsdp` and `deepspeed` may stand alone.
constexpr std::string_view kFiles = " deepspeed_config deepspeed_config_file fsdp_config ";
constexpr std::string_view kChoices = " use_fsdp use_deepspeed multi_gpu ";
constexpr std::string_view kOptional = " fsdp deepspeed use_parallelism_config ";

constexpr std::string_view kBareWithoutEffect =
    " bind_cores_to_rank debug downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph "
    "dynamo_use_regional_compilation elastic_training enable_cpu_affinity force_multi ipex m "
    "module "
    "no_local_rank no_python no_ssh_check q run_path same_network save_pid use_env "
    "virtual_local_rank ";
constexpr std::string_view kValueWithoutEffect =
    " account bind_core_list comment dynamo_mode enable_each_rank_log event_log_handler launcher "
    "launcher_args local_addr local_rank local_ranks_filter log_dir logs_specs max_elastic_nodes "
    "monitor_interval mpirun_ccl numa_binding r rdzv_conf redirects role shutdown_timeout "
    "signals_to_handle start_method t tee venv_script ";
constexpr std::string_view kRefusedBare = " tpu tpu_cluster tpu_use_sudo use_megatron_lm use_xpu ";
constexpr std::string_view kRefusedValue = " autotuning aws_access_key_id aws_secret_access_key ";

bool is_in(std::string_view list, const std::string& name) {
  return list.find(" " + name + " ") != std::string_view::npos;
}

std::string plain(std::string_view word) {
  std::string name(word.substr(std::min(word.find_first_not_of('-'), word.size())));
  std::ranges::replace(name, '-', '_');
  return name;
}

bool is_mesh(const std::string& name) { return name.starts_with("parallelism_config_"); }
bool is_fsdp(const std::string& name) { return name.starts_with("fsdp_") && name != "fsdp_config"; }
bool is_refused(const std::string& name) {
  return is_in(kRefusedBare, name) || is_in(kRefusedValue, name) || name.starts_with("fp8_") ||
         name.starts_with("megatron_lm_");
}

// Splits the value of Trainer's --fsdp at spaces or commas: "full_shard auto_wrap offload". The
// documentation also writes "full shard".
std::optional<std::vector<std::string>> fsdp_words(std::string text) {
  std::ranges::replace(text, ',', ' ');
  for (const char* name : {"full shard", "shard grad op", "no shard", "hybrid shard"}) {
    const size_t at = text.find(name);
    if (at == std::string::npos) continue;
    std::replace(text.begin() + static_cast<int64_t>(at),
                 text.begin() + static_cast<int64_t>(at + std::string_view(name).size()), ' ', '_');
  }
  std::vector<std::string> words;
  for (size_t from = 0; (from = text.find_first_not_of(' ', from)) != std::string::npos;) {
    const size_t to = std::min(text.find(' ', from), text.size());
    words.push_back(text.substr(from, to - from));
    from = to;
  }
  const std::vector<std::string> known = {
      "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2",
      "auto_wrap",  "offload",       "on",       "true",         "True"};
  const bool all = std::ranges::all_of(
      words, [&](const std::string& word) { return std::ranges::count(known, word) > 0; });
  return all ? std::optional(words) : std::nullopt;
}

// Collects the words that are keys of Accelerate's files and reads them as such a file.
class Words {
 public:
  Words(OptionReader& reader, const ReadWholeFile& read_whole)
      : reader_(reader),
        read_whole_(read_whole),
        file_("command line", "torchrun, Accelerate or DeepSpeed", Source::kFlag, reader) {
    file_.of_flags();
  }

  Status read(const std::vector<SaidWord>& words) {
    for (const SaidWord& said : words) OFSDP_RETURN_IF_ERROR(take(said, plain(said.word)));
    std::vector<ForeignKey> keys;
    for (const auto& [name, section] :
         {std::pair("fsdp_config", fsdp_), std::pair("parallelism_config", mesh_),
          std::pair("deepspeed_config", deepspeed_)}) {
      if (section.size() > 0) keys.push_back({name, name, section});
    }
    if (!kind_.empty()) {
      keys.push_back({"distributed_type", kind_word_, YAML::Node(kind_)});
    }
    for (const auto& key : top_) keys.push_back(key);
    return read_accelerate(file_, keys);
  }

 private:
  Status take(const SaidWord& said, const std::string& name) {
    if (is_refused(name)) {
      return input_error("{}: not offered here: expected no such word", said.word);
    }
    if (is_in(kFiles, name)) return read_file(said, name);
    if (name == "fsdp") return take_fsdp(said);
    if (name == "deepspeed" || is_in(kOptional, name)) {
      if (said.text.ends_with(".json")) return read_file(said, "deepspeed_config");
      if (name != "deepspeed") file_.without_effect({said.word, said.word, {}});
      return ok_status();
    }
    if (is_in(kChoices, name)) return choose(said, name), ok_status();
    if (name == "ssh_port") {
      return reader_.read("rsh", "ssh -o BatchMode=yes -p " + said.text, Source::kFlag, said.word);
    }
    if (is_mesh(name)) {
      mesh_[name] = said.text;
    } else if (is_fsdp(name)) {
      fsdp_[name] = said.text;
    } else if (is_in(kDeepSpeedKeys, name)) {
      deepspeed_[name] = said.text;
    } else if (is_in(kTopKeys, name)) {
      // A word with a value; the key has this name.
      top_.push_back({name, said.word, YAML::Node(said.text)});
    } else {
      file_.without_effect({said.word, said.word, {}});
    }
    return ok_status();
  }

  // Takes the stronger of several counts, like Accelerate.
  void choose(const SaidWord& said, const std::string& name) {
    static constexpr std::string_view kStrength[] = {"", "MULTI_GPU", "FSDP", "DEEPSPEED"};
    const std::string kind = name == "use_fsdp"        ? "FSDP"
                             : name == "use_deepspeed" ? "DEEPSPEED"
                                                       : "MULTI_GPU";
    if (std::ranges::find(kStrength, kind) < std::ranges::find(kStrength, kind_)) return;
    kind_ = kind;
    kind_word_ = said.word;
  }

  Status take_fsdp(const SaidWord& said) {
    const auto words = fsdp_words(said.text);
    if (!words) {
      return input_error(
          "{}: expected full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2 "
          "with auto_wrap, offload, found '{}'",
          said.word, said.text);
    }
    for (const std::string& word : *words) {
      if (word == "offload") {
        OFSDP_RETURN_IF_ERROR(reader_.read("cpu-offload", "params", Source::kFlag, said.word));
      } else if (word.find("shard") != std::string::npos) {
        OFSDP_RETURN_IF_ERROR(reader_.read("strategy", word, Source::kFlag, said.word));
      }
    }
    return ok_status();
  }

  // The extension does not matter: DeepSpeed's tutorials use `.config`.
  Status read_file(const SaidWord& said, const std::string& name) {
    if (name != "fsdp_config") {
      return read_deepspeed_config(said.text, Source::kConfigFile, reader_);
    }
    return without_yaml_exceptions(said.text, "YAML", [&]() -> Status {
      OFSDP_ASSIGN_OR_RETURN(const YAML::Node root, read_document(said.text, "YAML"));
      const bool whole = root.IsMap() && (root["fsdp_config"] || root["distributed_type"]);
      if (whole) return read_whole_(said.text, Source::kConfigFile, reader_);
      ForeignFile file(said.text, "Accelerate", Source::kConfigFile, reader_);
      return read_accelerate(file, {{name, said.text, root}});
    });
  }

  OptionReader& reader_;
  const ReadWholeFile& read_whole_;
  ForeignFile file_;
  YAML::Node fsdp_, mesh_, deepspeed_;
  std::vector<ForeignKey> top_;
  std::string kind_, kind_word_;
};

}  // namespace

ForeignLauncher take_launcher(std::vector<std::string>& arguments) {
  const auto at = [&](size_t i) { return i < arguments.size() ? arguments[i] : std::string(); };
  const auto drop = [&](size_t count, ForeignLauncher launcher) {
    arguments.erase(arguments.begin(), arguments.begin() + static_cast<int64_t>(count));
    return launcher;
  };
  if (at(0) == "torchrun") return drop(1, ForeignLauncher::kTorchrun);
  if (at(0) == "accelerate-launch") return drop(1, ForeignLauncher::kAccelerate);
  if (at(0) == "accelerate-config") {
    arguments[0] = "config";
    return ForeignLauncher::kAccelerate;
  }
  if (at(0) == "accelerate") return drop(at(1) == "launch" ? 2 : 1, ForeignLauncher::kAccelerate);
  if (at(0) == "deepspeed") return drop(1, ForeignLauncher::kDeepSpeed);
  if (!at(0).starts_with("python")) return ForeignLauncher::kNone;
  const size_t module = at(1) == "-u" ? 3 : 2;
  if (at(module - 1) != "-m") return ForeignLauncher::kNone;
  const std::string name = at(module);
  if (name == "torch.distributed.run" || name == "torch.distributed.launch") {
    return drop(module + 1, ForeignLauncher::kTorchrun);
  }
  if (name == "accelerate.commands.launch") return drop(module + 1, ForeignLauncher::kAccelerate);
  if (name == "deepspeed.launcher.runner") return drop(module + 1, ForeignLauncher::kDeepSpeed);
  return ForeignLauncher::kNone;
}

std::optional<CommandWord> find_command_word(std::string_view word) {
  const std::string name = plain(word);
  if (name.empty() || (word.starts_with("--") ? name.size() < 2 : name.size() != 1)) return {};
  for (const Alias& alias : kAliases) {
    if (alias.word != name) continue;
    return CommandWord{alias.value.empty() ? Kind::kValue : Kind::kBare, std::string(alias.flag),
                       std::string(alias.value)};
  }
  if (is_in(kOptional, name)) return CommandWord{.kind = Kind::kOptional};
  if (is_in(kBareWithoutEffect, name) || is_in(kChoices, name) || is_in(kRefusedBare, name)) {
    return CommandWord{.kind = Kind::kBare};
  }
  const bool value = is_fsdp(name) || is_mesh(name) || is_refused(name) || name == "ssh_port" ||
                     is_in(kFiles, name) || is_in(kTopKeys, name) || is_in(kDeepSpeedKeys, name) ||
                     is_in(kValueWithoutEffect, name);
  return value ? std::optional(CommandWord{}) : std::nullopt;
}

bool takes_next(std::string_view word, const std::string& next) {
  if (plain(word) == "fsdp") return fsdp_words(next).has_value();
  if (plain(word) == "deepspeed") return next.ends_with(".json");
  return parse_switch(next).has_value();
}

Status read_command_words(const std::vector<SaidWord>& words, OptionReader& reader,
                          const ReadWholeFile& read_whole) {
  if (words.empty()) return ok_status();
  return without_yaml_exceptions("command line", "YAML",
                                 [&] { return Words(reader, read_whole).read(words); });
}

std::string accelerate_default_file() {
  const auto from = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  std::filesystem::path folder = from("HF_HOME");
  if (folder.empty() && !from("XDG_CACHE_HOME").empty()) {
    folder = from("XDG_CACHE_HOME") / "huggingface";
  }
  if (folder.empty()) folder = from("HOME") / ".cache" / "huggingface";
  return (folder / "accelerate" / "default_config.yaml").string();
}

}  // namespace ofsdp::cli
