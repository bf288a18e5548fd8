#include "runtime/cli/config/foreign/accelerate.h"

#include <algorithm>
#include <filesystem>

#include "runtime/cli/config/foreign/accelerate_fsdp.h"
#include "runtime/cli/config/foreign/deepspeed.h"

namespace ofsdp::cli {
namespace {

bool holds_something(const std::optional<ForeignKey>& key) {
  return key && (!key->value.IsMap() || key->value.size() > 0);
}

// Relative to the file that names it, or to the current folder.
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

// `deepspeed_config`: short keys, the name of a DeepSpeed file, or DeepSpeed's own keys in place.
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
                           choice_of(*precision_, {"no", "false", "fp16", "bf16"}));
    const char* const dtypes[] = {"float32", "float32", "float16", "bfloat16"};
    return set_precision(file_, *precision_, dtypes[which]);
  }

  Status resolve_hosts() {
    // Words of the command line stand next to a file that may have said how many.
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

  // num_processes is the world; -1 leaves it to whoever launches.
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
    // A word may change the port alone.
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

  // The section that distributed_type selects; that of another kind would be without effect, which
  // nobody means.
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
    OFSDP_RETURN_IF_ERROR(choice_of(*kind_, kKinds).status());
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
