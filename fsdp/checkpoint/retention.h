// Retention: the checkpoints that stay. These are the newest `keep`, and the one of the best
// evaluation when `best` asks for it.
#pragma once

#include <cstdint>

#include "kernels/base/names.h"

namespace ofsdp::fsdp {

enum class KeepBest { kNone, kLoss, kAccuracy };
OFSDP_ENUM_NAMES(KeepBest, {kNone, "none"}, {kLoss, "loss"}, {kAccuracy, "accuracy"})

struct Retention {
  int64_t keep = 2;
  KeepBest best = KeepBest::kNone;
};

}  // namespace ofsdp::fsdp
