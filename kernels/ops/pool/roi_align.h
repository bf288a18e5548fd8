// RoiAlign's sizes from its attributes; also for devices.
#pragma once

#include "kernels/core/kernel.h"
#include "kernels/formulas/roi_samples.h"

namespace ofsdp::kernels::ops {

inline RoiParams roi_extent(const Attributes& a, const Shape& x, const Shape& rois) {
  const bool half = a.s("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  return {x[0],
          x[1],
          x[2],
          x[3],
          rois[0],
          a.i("output_height", 1),
          a.i("output_width", 1),
          a.i("sampling_ratio", 0),
          static_cast<double>(a.f("spatial_scale", 1.0f)),
          half ? 0.5 : 0.0,
          a.s("mode", "avg") == "max"};
}

}  // namespace ofsdp::kernels::ops
