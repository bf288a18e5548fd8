// Keys' cubic kernel: a sample's weight at distance x, and the slope. `a` is the slope at x = 1:
// -0.75 in ONNX and PyTorch. Keys, IEEE ASSP 29 (1981).
#pragma once

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

OFSDP_HD double cubic_weight(double x, double a) {
  x = x < 0 ? -x : x;
  if (x <= 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a : 0;
}

OFSDP_HD double cubic_slope(double x, double a) {
  const double sign = x < 0 ? -1 : 1;
  x = x < 0 ? -x : x;
  if (x <= 1) return sign * (3 * (a + 2) * x - 2 * (a + 3)) * x;
  return x < 2 ? sign * (3 * a * x * x - 10 * a * x + 8 * a) : 0;
}

}  // namespace ofsdp::kernels
