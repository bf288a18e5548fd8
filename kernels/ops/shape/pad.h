// What Pad and its gradient share: attributes, and their walk for references.
//
// Owns: values. Threads: any. Errors: kInput.
#pragma once

#include "kernels/cpu/pad.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

struct Pads {
  std::vector<int64_t> before, after;  // of every axis
};

Result<PadMode> pad_mode(const Attributes& attributes);

// f(element of data or -1, element of y)
template <typename F>
void reference_pad_walk(const Shape& data, const Shape& y, const Pads& pads, PadMode mode,
                        const F& f) {
  for (int64_t i = 0; i < y.numel(); ++i) {
    auto index = unravel(y, i);
    bool inside = true;
    for (size_t axis = 0; axis < index.size(); ++axis) {
      index[axis] = pad_axis(data[static_cast<int>(axis)], pads.before[axis], pads.after[axis],
                             mode)[static_cast<size_t>(index[axis])];
      inside &= index[axis] >= 0;
    }
    f(inside ? static_cast<int64_t>(ravel(data, index)) : -1, static_cast<size_t>(i));
  }
}

}  // namespace ofsdp::kernels::ops
