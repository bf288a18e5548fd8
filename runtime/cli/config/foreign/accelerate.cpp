#include "runtime/cli/config/foreign/accelerate.h"

#include <algorithm>

#include "runtime/cli/config/foreign/accelerate_deepspeed.h"
#include "runtime/cli/config/foreign/accelerate_fsdp.h"

namespace ofsdp::cli {
namespace {

bool holds_something(const std::optional<ForeignKey>& key) {
  return key && (!key->value.IsMap() || key->value.size() > 0);
}

class TopLevel {
 public:
  explicit TopLevel(ForeignFile& file) : file_(file) {}

  Status read(const std::vector<ForeignKey>& keys) {
    const std::vector<KeyRule> all = rules();
    for (const ForeignKey& key : keys) {
      OFSDP_RETURN_IF_ERROR(file_.read_one(key, key.path, all));
    }
    OFSDP_RETURN_IF_ERROR(settle_precision());
    OFSDP_RETURN_IF_ERROR(settle_hosts());
    OFSDP_RETURN_IF_ERROR(settle_kind());
    file_.finish();
    return ok_status();
  }

  std::vector<KeyRule> rules() {
    const auto keep = [](std::optional<ForeignKey>& at) {
      return [&at](const ForeignKey& key) {
        at = key;
        return ok_status();
      };
    };
    std::vector<KeyRule> all = {
        {"compute_environment", [](const ForeignKey& key) { return local_machine(key); }},
        {"distributed_type", keep(kind_)},
        {"mixed_precision", keep(precision_)},
        {"fp16", keep(fp16_)},
        {"use_cpu", keep(use_cpu_)},
        {"num_processes", keep(processes_)},
        {"num_machines", keep(machines_)},
        {"machine_rank", keep(machine_rank_)},
        {"main_process_ip", keep(address_)},
        {"main_process_port", keep(port_)},
        {"fsdp_config", keep(fsdp_)},
        {"parallelism_config", keep(parallelism_)},
        {"deepspeed_config", keep(deepspeed_)},
        {"deepspeed_config_file", keep(deepspeed_file_)}};
    add_without_effect(all, {"command_file",
                             "commands",
                             "debug",
                             "downcast_bf16",
                             "dynamo_backend",
                             "dynamo_config",
                             "enable_cpu_affinity",
                             "fp8_config",
                             "gpu_ids",
                             "ipex_config",
                             "main_training_function",
                             "megatron_lm_config",
                             "mpirun_config",
                             "rdzv_backend",
                             "same_network",
                             "tpu_env",
                             "tpu_name",
                             "tpu_use_cluster",
                             "tpu_use_sudo",
                             "tpu_vm",
                             "tpu_zone"});
    return all;
  }

 private:
  static Status local_machine(const ForeignKey& key) {
    return key.is("LOCAL_MACHINE") ? ok_status() : expected(key, "LOCAL_MACHINE");
  }

  Status settle_precision() {
    if (fp16_) {
      OFSDP_ASSIGN_OR_RETURN(const bool on, switch_of(*fp16_));
      file_.warn(*fp16_, "deprecated by Accelerate; mixed_precision: fp16 says the same");
      if (on) OFSDP_RETURN_IF_ERROR(set_precision(file_, *fp16_, "float16"));
    }
    if (!precision_) return ok_status();
    // YAML 1.1 reads an unquoted `no` as false.
    static constexpr std::string_view kDTypes[] = {"float32", "float32", "float16", "bfloat16"};
    if (precision_->is("fp8")) {
      return input_error("{}: fp8 is not offered here: expected no, fp16 or bf16",
                         precision_->subject);
    }
    OFSDP_ASSIGN_OR_RETURN(const size_t which,
                           choice_of(*precision_, {"no", "false", "fp16", "bf16"}));
    return set_precision(file_, *precision_, std::string(kDTypes[which]));
  }

  Status settle_hosts() {
    int64_t machines = 1;
    if (machines_) {
      OFSDP_ASSIGN_OR_RETURN(machines, count_of(*machines_, 1));
    }
    if (machine_rank_) {
      OFSDP_ASSIGN_OR_RETURN(const int64_t rank, count_of(*machine_rank_, 0));
      if (rank >= machines) {
        if (machines_) return contradiction(*machine_rank_, *machines_, "hosts count from 0");
        return input_error("{}: expected 0 beside one machine, found {}", machine_rank_->subject,
                           rank);
      }
    }
    if (processes_) OFSDP_RETURN_IF_ERROR(settle_processes(machines));
    return machines > 1 ? settle_many_hosts() : ok_status();
  }

  // num_processes is the world; -1 leaves it to whoever launches.
  Status settle_processes(int64_t machines) {
    OFSDP_ASSIGN_OR_RETURN(const int64_t world, count_of(*processes_, -1));
    if (world == -1) return ok_status();
    if (world == 0) return expected(*processes_, "a whole number of at least 1");
    if (world % machines != 0) {
      return contradiction(*processes_, *machines_, "as many ranks on each host are expected");
    }
    return file_.set("nproc-per-node", format_text("{}", world / machines), *processes_);
  }

  Status settle_many_hosts() {
    OFSDP_RETURN_IF_ERROR(file_.set("nnodes", machines_->value.Scalar(), *machines_));
    if (machine_rank_) {
      OFSDP_RETURN_IF_ERROR(file_.set("node-rank", machine_rank_->value.Scalar(), *machine_rank_));
    }
    if (!address_) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(std::string endpoint, text_of(*address_));
    if (port_) {
      OFSDP_ASSIGN_OR_RETURN(const int64_t port, count_of(*port_, 1));
      endpoint += format_text(":{}", port);
    }
    return file_.set("rdzv-endpoint", endpoint, *address_);
  }

  // What distributed_type selects; the section of another kind would be without effect, which
  // nobody means.
  Status settle_kind() {
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
