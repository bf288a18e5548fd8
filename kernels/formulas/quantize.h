// Rounding to the integers of a quantized tensor and back, and the gradient of that:
//
//   q = round(x / scale) + zero_point, half to even
//   y = (clamp(q, lo, hi) - zero_point) * scale
//   slope of y along x: 1 where lo <= q <= hi, else 0
//   slope of y along scale: round(x / scale) - x / scale where lo <= q <= hi,
//     else lo - zero_point or hi - zero_point
//
// NaN stays NaN: comparisons with it are false. float32.
// https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html, https://arxiv.org/abs/1902.08153 (LSQ)
#pragma once

#include <cmath>

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

struct IntegerRange {
  float lo, hi;
};

OFSDP_HD float fake_quantized(float x, float scale, float zero, IntegerRange range) {
  float q = rintf(x / scale) + zero;
  q = q < range.lo ? range.lo : q;
  q = q > range.hi ? range.hi : q;
  return (q - zero) * scale;
}

// dy times the slope along x.
OFSDP_HD float fake_quantized_grad(float dy, float x, float scale, float zero, IntegerRange range) {
  const float q = rintf(x / scale) + zero;
  return q < range.lo || q > range.hi ? 0.0f : dy;
}

OFSDP_HD float fake_quantized_scale_slope(float x, float scale, float zero, IntegerRange range) {
  const float ratio = x / scale;
  const float rounded = rintf(ratio), q = rounded + zero;
  const float low = q < range.lo ? range.lo - zero : rounded - ratio;
  return q > range.hi ? range.hi - zero : low;
}

}  // namespace ofsdp::kernels
