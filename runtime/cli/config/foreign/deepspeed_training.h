// DeepSpeed's `optimizer` and `scheduler`: those whose definition equals one of ours, with their
// parameters; the others are refused with the reason.
//
// [Note: DeepSpeed's schedules] As functions of DeepSpeed's iteration i, WarmupDecayLR with
// warmup_type linear is our linear, WarmupLR is linear with min_lr_ratio 1, and WarmupCosineLR without
// warm-up is our cosine with min_lr_ratio cos_min_ratio. DeepSpeed's engine takes i = s - 1 for update
// s (the optimizer steps before its scheduler), so that the first two come one update earlier here;
// WarmupCosineLR adds that one itself. Its warm-up starts at 0, ours at lr/W: refused.
//
// Ownership, threads, errors: as ForeignFile.
#pragma once

#include "runtime/cli/config/foreign/foreign_file.h"

namespace ofsdp::cli {

Status read_deepspeed_training(ForeignFile& file, const std::optional<ForeignKey>& optimizer,
                               const std::optional<ForeignKey>& scheduler);

}  // namespace ofsdp::cli
