// LossScale: the dynamic loss scale of float16, which the engine owns. Backward starts from the
// scaled loss, so that small gradients do not vanish; the update divides gradients by the scale. If
// a gradient is not finite, the engine skips the update and halves the scale; if the scale is kMin
// already, the trainer ends the run. kGrowthInterval good updates in a row double it. Scales are
// powers of two, so scaling rounds nothing except numbers that overflow or underflow. A checkpoint
// contains it. Constants from torch.amp.GradScaler; Micikevicius et al., "Mixed Precision
// Training", ICLR 2018, section 3.2.
#pragma once

#include <cstdint>

namespace ofsdp::runtime {

struct LossScale {
  static constexpr int64_t kGrowthInterval = 2000;
  static constexpr double kMax = 0x1p24, kMin = 1;

  double scale = 0x1p16;
  int64_t good_updates = 0;     // in a row
  int64_t skipped_updates = 0;  // since training began; neither the optimizer nor the learning
                                // rate schedule counts them

  // Call after each update. `finite`: all gradients of all ranks were; all ranks pass the same.
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
