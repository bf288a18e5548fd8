// DeepSpeed's configuration, as DeepSpeed 0.19 documents and reads it
// (https://www.deepspeed.ai/docs/config-json/): batch, precision, ZeRO, clipping, optimizer and
// scheduler become our options; "auto" and absent keys take ours. docs/configuration.md has the
// table of keys, and the keys that are refused because they would compute something else.
//
// [Note: DeepSpeed's schedules] As functions of DeepSpeed's iteration i, WarmupDecayLR with
// warmup_type linear is our linear, WarmupLR is linear with min_lr_ratio 1, and WarmupCosineLR
// without warm-up is our cosine with min_lr_ratio cos_min_ratio. DeepSpeed's engine takes i = s - 1
// for update s (the optimizer steps before its scheduler), so that the first two come one update
// earlier here; WarmupCosineLR adds that one itself. Its warm-up starts at 0, ours at lr/W:
// refused.
//
// Ownership, threads, errors: as ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

// Keys of DeepSpeed's top level (or of an inline `deepspeed_config`), read one by one and resolved
// at the end.
class DeepSpeedKeys {
 public:
  explicit DeepSpeedKeys(ForeignFile& file) : file_(file) {}

  std::vector<KeyRule> rules();
  Status resolve();

  // Accelerate's own keys set these as well.
  std::optional<ForeignKey> stage, offload_optimizer, offload_param;

 private:
  std::vector<KeyRule> zero_rules();
  KeyRule offload(std::string_view name, std::optional<ForeignKey>& device);
  KeyRule old_offload(std::string_view name, const char* now, std::string meaning);
  KeyRule precision(std::string_view name, std::optional<ForeignKey>& enabled);
  KeyRule must_be_off(std::string_view name);
  Status read_zero(const ForeignKey& key);
  Status read_checkpointing(const ForeignKey& key);
  Status resolve_stage();
  Status resolve_offload();
  Status resolve_precision();
  Status resolve_buckets();

  ForeignFile& file_;
  std::optional<ForeignKey> clipping_, fp16_, bf16_, hpz_, mics_, gathered_, reduced_, prefetched_,
      optimizer_, scheduler_;
};

Status read_deepspeed_config(const std::string& path, Source source, OptionReader& reader);

}  // namespace ofsdp::cli
