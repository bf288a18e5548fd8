// Window arithmetic inside kernels: positions and taps. Indices are 32-bit if all element counts
// fit, since a 64-bit division costs more than a load. Iterating over taps needs no division.
#pragma once

#include <limits>

#include "kernels/cuda/conv/window.h"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

template <typename I>
struct Windows {
  using Index = I;
  I images, channels;
  I in[3], out[3], kernel[3], strides[3], dilations[3], pads_begin[3], pads_end[3];
  bool channels_last;
};

template <typename I>
__host__ __device__ inline I volume(const I* size) {
  return size[0] * size[1] * size[2];
}

template <typename I>
Windows<I> make_windows(const WindowParams& w) {
  Windows<I> made{};
  made.images = static_cast<I>(w.images);
  made.channels = static_cast<I>(w.channels);
  made.channels_last = w.channels_last;
  for (int a = 0; a < 3; ++a) {
    made.in[a] = static_cast<I>(w.in[a]);
    made.out[a] = static_cast<I>(w.out[a]);
    made.kernel[a] = static_cast<I>(w.kernel[a]);
    made.strides[a] = static_cast<I>(w.strides[a]);
    made.dilations[a] = static_cast<I>(w.dilations[a]);
    made.pads_begin[a] = static_cast<I>(w.pads_begin[a]);
    made.pads_end[a] = static_cast<I>(w.pads_end[a]);
  }
  return made;
}

// Calls f(Windows<int32_t>, T{}) if `most`, the largest element count, and all padded positions
// fit, otherwise f(Windows<int64_t>, T{}).
template <typename F>
cudaError_t with_windows(const WindowParams& w, int64_t most, const F& f) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() / 2;
  bool fits = most <= kMax;
  for (int a = 0; a < 3; ++a) {
    fits = fits && (w.out[a] + w.kernel[a]) * w.strides[a] <= kMax &&
           w.in[a] + w.pads_begin[a] + w.pads_end[a] + w.kernel[a] * w.dilations[a] <= kMax;
  }
  return with_float(w.dtype, [&](auto element) {
    return fits ? f(make_windows<int32_t>(w), element) : f(make_windows<int64_t>(w), element);
  });
}

template <typename I>
__device__ inline I thread_index() {
  return static_cast<I>(int64_t{blockIdx.x} * kThreads + threadIdx.x);
}

// Splits a row-major position into three indices.
template <typename I>
__device__ inline void unravel(const I* size, I at, I* index) {
  const I rows = at / size[2];
  index[2] = at - rows * size[2];
  index[0] = rows / size[1];
  index[1] = rows - index[0] * size[1];
}

// A kernel tap with its row-major number.
template <typename I>
struct Tap {
  I k[3] = {}, number = 0;

  __device__ static Tap last(const Windows<I>& w) {
    return {{w.kernel[0] - 1, w.kernel[1] - 1, w.kernel[2] - 1}, volume(w.kernel) - 1};
  }
  __device__ static Tap of(const Windows<I>& w, I number) {
    Tap made;
    made.number = number;
    unravel(w.kernel, number, made.k);
    return made;
  }
  __device__ void next(const Windows<I>& w) {
    ++number;
    for (int a = 2; a >= 0; --a) {
      if (++k[a] < w.kernel[a]) return;
      k[a] = 0;
    }
  }
  __device__ void previous(const Windows<I>& w) {
    --number;
    for (int a = 2; a >= 0; --a) {
      if (k[a]-- > 0) return;
      k[a] = w.kernel[a] - 1;
    }
  }
};

// Returns the input position that output `o` reads through the tap, or -1 if it is padding.
template <typename I>
__device__ inline I seen(const Windows<I>& w, const I* o, const Tap<I>& tap) {
  I at = 0;
  for (int a = 0; a < 3; ++a) {
    const I p = o[a] * w.strides[a] - w.pads_begin[a] + tap.k[a] * w.dilations[a];
    if (p < 0 || p >= w.in[a]) return -1;
    at = at * w.in[a] + p;
  }
  return at;
}

// Returns the output that reads input position `p` through the tap, or -1.
template <typename I>
__device__ inline I seer(const Windows<I>& w, const I* p, const Tap<I>& tap) {
  I at = 0;
  for (int a = 0; a < 3; ++a) {
    const I from = p[a] + w.pads_begin[a] - tap.k[a] * w.dilations[a];
    if (from < 0) return -1;
    const I o = from / w.strides[a];
    if (o * w.strides[a] != from || o >= w.out[a]) return -1;
    at = at * w.out[a] + o;
  }
  return at;
}

}  // namespace ofsdp::kernels::cuda
