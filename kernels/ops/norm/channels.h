// The channels of a batch normalization's image. Pure; any thread.
#pragma once

#include "kernels/core/tensor.h"
#include "kernels/cpu/channel_norm.h"

namespace ofsdp::kernels::ops {

// [N, C, d...]; a vector is N samples of one channel. Without inner axes both layouts are the same,
// and channels last is the faster order.
inline ChannelExtent batch_norm_extent(const TensorDesc& x) {
  const Shape& s = x.shape;
  if (s.rank() < 2) return {s.numel(), 1, 1, false};
  const int64_t inner = s.numel(2, s.rank());
  return {s[0], s[1], inner, x.layout == Layout::kChannelsLast || inner == 1};
}

}  // namespace ofsdp::kernels::ops
