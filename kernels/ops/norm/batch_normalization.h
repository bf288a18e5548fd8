// What BatchNormalization and its gradient share: the extent of x, and factors per channel.
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "kernels/cpu/channel_norm.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

// [N, C, d...]; a vector is N samples of one channel. Without inner axes both layouts are one, and
// channels last is the faster way to walk.
ChannelExtent batch_norm_extent(const TensorDesc& x);

}  // namespace ofsdp::kernels::ops
