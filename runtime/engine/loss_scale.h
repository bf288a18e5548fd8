// LossScale: the dynamic loss scale of float16. The loss is multiplied by it before backward, so
// that small gradients do not vanish; the update divides by it. A gradient that is not finite skips
// the update and halves the scale, and ends the run if the scale is kMin already; kGrowthInterval
// good updates in a row double it. Powers of two: nothing is rounded. Numbers of
// torch.amp.GradScaler; Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2.
//
// Ownership: a value, the executor's; part of a checkpoint. Threads: one. Errors: none.
#pragma once

#include <cstdint>

namespace ofsdp::runtime {

struct LossScale {
  static constexpr int64_t kGrowthInterval = 2000;
  static constexpr double kMax = 0x1p24, kMin = 1;

  double scale = 0x1p16;
  int64_t good_updates = 0;     // in a row
  int64_t skipped_updates = 0;  // since the beginning: neither the optimizer nor the schedule
                                // of the rate has counted them

  void note(bool finite) {
    if (!finite) {
      scale = scale / 2 < kMin ? kMin : scale / 2;
      good_updates = 0;
      ++skipped_updates;
    } else if (++good_updates == kGrowthInterval) {
      scale = scale * 2 > kMax ? kMax : scale * 2;
      good_updates = 0;
    }
  }
};

}  // namespace ofsdp::runtime
