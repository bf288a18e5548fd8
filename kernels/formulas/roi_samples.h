// The samples that RoiAlign takes from a region, and the pixels around each; for the CPU and for
// devices. kernels/ops/pool/roi_align.cpp says what the operator computes.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

struct RoiParams {
  int64_t images = 0, channels = 0, height = 0, width = 0, rois = 0, bins_y = 1, bins_x = 1;
  int64_t ratio = 0;
  double scale = 1, offset = 0;
  bool largest = false;  // instead of the mean

  OFSDP_HD int64_t pixels() const { return height * width; }
  OFSDP_HD int64_t bins() const { return bins_y * bins_x; }
};

// One axis of a region: bins of `size` from `begin`, each with `samples`.
struct RoiAxis {
  double begin, size;
  int64_t samples;

  OFSDP_HD double place(int64_t bin, int64_t sample) const {
    return begin + size * (static_cast<double>(bin) +
                           (static_cast<double>(sample) + 0.5) / static_cast<double>(samples));
  }
};

OFSDP_HD RoiAxis roi_axis(const RoiParams& e, double begin, double end, int64_t bins) {
  begin = begin * e.scale - e.offset;
  end = end * e.scale - e.offset;
  double length = end - begin;
  if (e.offset == 0 && !(length >= 1)) length = 1;
  const double size = length / static_cast<double>(bins);
  const double most = size < 0 ? 0 : size > 1e6 ? 1e6 : size;
  return {begin, size, e.ratio > 0 ? e.ratio : static_cast<int64_t>(std::ceil(most))};
}

// The axes of region r.
struct RoiRegion {
  RoiAxis down, across;

  // The divisor of a mean.
  OFSDP_HD double samples() const {
    const int64_t count = down.samples * across.samples;
    return static_cast<double>(count < 1 ? 1 : count);
  }
};

template <typename T>
OFSDP_HD RoiRegion roi_region(const RoiParams& e, const T* rois, int64_t r) {
  const T* const at = rois + r * 4;
  return {roi_axis(e, static_cast<double>(at[1]), static_cast<double>(at[3]), e.bins_y),
          roi_axis(e, static_cast<double>(at[0]), static_cast<double>(at[2]), e.bins_x)};
}

// The two pixels around a position on one axis.
struct RoiBetween {
  int64_t low, high;
  double to_low, to_high;  // their weights
};

OFSDP_HD RoiBetween roi_between(double place, int64_t pixels) {
  if (place < 0) place = 0;
  const auto low = static_cast<int64_t>(place);
  if (low >= pixels - 1) return {pixels - 1, pixels - 1, 1, 0};
  const double above = place - static_cast<double>(low);
  return {low, low + 1, 1 - above, above};
}

// A sample: four pixels with weights; one of weight 0 if it lies outside.
struct RoiSample {
  int count = 0;
  int64_t pixel[4] = {};
  double weight[4] = {};
};

OFSDP_HD RoiSample roi_sample(const RoiParams& e, const RoiRegion& region, int64_t bin,
                              int64_t sample) {
  const RoiAxis &down = region.down, &across = region.across;
  const double y = down.place(bin / e.bins_x, sample / across.samples);
  const double x = across.place(bin % e.bins_x, sample % across.samples);
  const bool inside =
      y >= -1 && y <= static_cast<double>(e.height) && x >= -1 && x <= static_cast<double>(e.width);
  if (!inside) return {1, {}, {}};
  const RoiBetween v = roi_between(y, e.height), h = roi_between(x, e.width);
  return {4,
          {v.low * e.width + h.low, v.low * e.width + h.high, v.high * e.width + h.low,
           v.high * e.width + h.high},
          {v.to_low * h.to_low, v.to_low * h.to_high, v.to_high * h.to_low, v.to_high * h.to_high}};
}

// The pixel with the largest weight times value, the first among equals. -1: a bin without samples.
struct RoiLargest {
  int64_t pixel = -1;
  double weight = 0;
};

template <typename T>
OFSDP_HD RoiLargest roi_largest(const RoiParams& e, const RoiRegion& region, int64_t bin,
                                const T* x) {
  RoiLargest best;
  double most = 0;
  for (int64_t i = 0; i < region.down.samples * region.across.samples; ++i) {
    const RoiSample sample = roi_sample(e, region, bin, i);
    for (int k = 0; k < sample.count; ++k) {
      const double value = sample.weight[k] * static_cast<double>(x[sample.pixel[k]]);
      if (best.pixel >= 0 && !(value > most)) continue;
      best = {sample.pixel[k], sample.weight[k]};
      most = value;
    }
  }
  return best;
}

}  // namespace ofsdp::kernels
