// LossScale: the dynamic loss scale of float16. Backward starts from the scaled loss, so that small
// gradients do not vanish; the update divides by the scale. A gradient that is not finite skips the
// update and halves the scale; the run ends if the scale is kMin already. kGrowthInterval good
// updates in a row double it. Scales are powers of two, so nothing is rounded. A checkpoint
// contains it. Numbers from torch.amp.GradScaler; Micikevicius et al., "Mixed Precision Training",
// ICLR 2018, section 3.2.
#pragma once

#include <cstdint>

namespace ofsdp::runtime {

struct LossScale {
  static constexpr int64_t kGrowthInterval = 2000;
  static constexpr double kMax = 0x1p24, kMin = 1;

  double scale = 0x1p16;
  int64_t good_updates = 0;     // in a row
  int64_t skipped_updates = 0;  // since the beginning; optimizer and learning rate schedule do
                                // not count them

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
