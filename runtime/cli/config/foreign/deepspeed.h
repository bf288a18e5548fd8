// DeepSpeed's configuration, as DeepSpeed 0.19 documents and reads it
// (https://www.deepspeed.ai/docs/config-json/): batch, precision, ZeRO, clipping, optimizer and
// scheduler become our options; "auto" and absent keys take ours. docs/configuration.md has the
// table of keys, and what is refused because it would compute something else.
//
// Ownership, threads, errors: as ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

// Keys of DeepSpeed's top level (or of an inline `deepspeed_config`), read one by one and settled at
// the end.
class DeepSpeedKeys {
 public:
  explicit DeepSpeedKeys(ForeignFile& file) : file_(file) {}

  std::vector<KeyRule> rules();
  Status settle();

  // What Accelerate's own keys set as well.
  KeyRule effect(std::string_view name, std::string option);  // a value that is ours as it stands
  KeyRule keep(std::string_view name, std::optional<ForeignKey>& at);
  std::optional<ForeignKey> stage, offload_optimizer, offload_param, clipping;

 private:
  std::vector<KeyRule> zero_rules();
  KeyRule offload(std::string_view name, std::optional<ForeignKey>& device);
  KeyRule precision(std::string_view name, std::optional<ForeignKey>& enabled);
  KeyRule must_be_off(std::string_view name);
  Status read_zero(const ForeignKey& key);
  Status communication_type(const ForeignKey& key);
  Status read_checkpointing(const ForeignKey& key);
  Status settle_stage();
  Status settle_offload();
  Status settle_precision();

  ForeignFile& file_;
  std::optional<ForeignKey> fp16_, bf16_, hpz_, mics_, optimizer_, scheduler_;
};

// A whole file, whose root this is.
Status read_deepspeed(ForeignFile& file, const YAML::Node& root);

}  // namespace ofsdp::cli
