// A Window of kernels/ops as the kernels of kernels/cuda/conv/window.h take it.
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <algorithm>

#include "kernels/cuda/conv/window.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::cuda {

inline WindowExtent window_extent(const ops::Window& w, int64_t images, int64_t channels,
                                  DType dtype, bool channels_last) {
  WindowExtent e;
  e.dtype = dtype;
  e.images = images;
  e.channels = channels;
  e.channels_last = channels_last;
  std::ranges::copy(w.in, e.in);
  std::ranges::copy(w.out, e.out);
  std::ranges::copy(w.kernel, e.kernel);
  std::ranges::copy(w.strides, e.strides);
  std::ranges::copy(w.dilations, e.dilations);
  std::ranges::copy(w.pads_begin, e.pads_begin);
  std::ranges::copy(w.pads_end, e.pads_end);
  return e;
}

}  // namespace ofsdp::kernels::cuda
