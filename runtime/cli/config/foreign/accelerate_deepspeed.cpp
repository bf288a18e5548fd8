#include "runtime/cli/config/foreign/accelerate_deepspeed.h"

#include <algorithm>
#include <filesystem>

#include "runtime/cli/config/foreign/deepspeed.h"
#include "runtime/cli/config/yaml_config.h"

namespace ofsdp::cli {
namespace {

std::vector<KeyRule> short_rules(ForeignFile& file, DeepSpeedKeys& keys) {
  std::vector<KeyRule> rules = {keys.keep("zero_stage", keys.stage),
                                keys.keep("offload_optimizer_device", keys.offload_optimizer),
                                keys.keep("offload_param_device", keys.offload_param),
                                {"deepspeed_config_file", [&file](const ForeignKey& key) {
                                   return read_deepspeed_file(file, key);
                                 }}};
  add_without_effect(rules,
                     {"zero3_init_flag", "zero3_save_16bit_model", "offload_optimizer_nvme_path",
                      "offload_param_nvme_path", "deepspeed_hostfile", "deepspeed_exclusion_filter",
                      "deepspeed_inclusion_filter", "deepspeed_multinode_launcher",
                      "deepspeed_moe_layer_cls_names"});
  return rules;
}

}  // namespace

Status read_accelerate_deepspeed(ForeignFile& file, const ForeignKey& section) {
  if (section.value.IsScalar()) return read_deepspeed_file(file, section);
  DeepSpeedKeys keys(file);
  std::vector<KeyRule> rules = short_rules(file, keys);
  for (KeyRule& rule : keys.rules()) rules.push_back(std::move(rule));
  OFSDP_RETURN_IF_ERROR(file.read_section(section, rules));
  return keys.settle();
}

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

}  // namespace ofsdp::cli
