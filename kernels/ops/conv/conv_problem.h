// The numbers of a convolution: x [N, C, spatial...], w [M, C/group, kernel...], y [N, M, outputs...].
//
// Owns: values. Threads: any. Errors: kInput from infer.
#pragma once

#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::ops {

struct ConvShape {
  Shape x, w, y;
  int64_t group = 1;
  Window window;
};

}  // namespace ofsdp::kernels::ops
