// Sizes of a CTC loss and of its measure, for the CPU and for devices.
// kernels/ops/loss/ctc_loss.cpp says what the operators compute.
#pragma once

#include "kernels/core/kernel.h"

namespace ofsdp::kernels::ops {

inline constexpr int64_t kSequenceFacts = 4;  // of a sample's row in ofsdp.MeasureCtc

struct CtcShape {
  CtcShape(const Shape& scores, const Shape& labels, const Attributes& attributes)
      : samples(labels[0]),
        places(labels.numel(1, labels.rank())),
        classes(scores[1]),
        steps(samples == 0 ? 0 : scores[0] / samples),
        blank(attributes.i("blank", 0)),
        ignore(attributes.i("ignore_index", -100)),
        space(attributes.i("space", -1)),
        time_first(attributes.i("time_first", 0) != 0) {}

  int64_t row(int64_t sample, int64_t step) const {
    return time_first ? step * samples + sample : sample * steps + step;
  }
  int64_t states() const { return 2 * places + 1; }

  int64_t samples, places, classes, steps, blank, ignore, space;
  bool time_first;
};

}  // namespace ofsdp::kernels::ops
