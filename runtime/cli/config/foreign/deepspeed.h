// Reads DeepSpeed's configuration as DeepSpeed 0.19 documents it
// (https://www.deepspeed.ai/docs/config-json/): batch, precision, ZeRO, clipping, optimizer and
// scheduler become our options; "auto" and absent keys take our defaults. docs/configuration.md has
// the table of keys, with those that are refused because they would compute something else.
//
// [Note: DeepSpeed's schedules] As functions of DeepSpeed's iteration i, WarmupDecayLR with
// warmup_type linear is our linear, WarmupLR is linear with min_lr_ratio 1, and WarmupCosineLR
// without warm-up is our cosine with min_lr_ratio cos_min_ratio. DeepSpeed uses i = s - 1 for
// update s, since the optimizer steps before the scheduler; so the first two come one update
// earlier here, and WarmupCosineLR adds that one itself. The warm-up of WarmupCosineLR starts at 0,
// ours at lr/W, so it is refused.
//
// Errors as in ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

// Reads keys of DeepSpeed's top level (or an inline `deepspeed_config`) one by one, and resolves
// them at the end.
class DeepSpeedKeys {
 public:
  explicit DeepSpeedKeys(ForeignFile& file) : file_(file) {}

  std::vector<KeyRule> rules();
  Status resolve();

  // Accelerate's own keys also set these.
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
