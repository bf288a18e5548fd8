// The numbers that ofsdp.FakeQuantize and the gradients (kernels/core/quantization.h) take from
// their attributes, for CPU and CUDA kernels: lo and hi, the integers' range; axis and block_size
// (kernels/core/quantization.h); count, how many elements share a scale (for an activation, in one
// sample).
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/core/kernel.h"
#include "kernels/core/quantization.h"
#include "kernels/core/tensor.h"

namespace ofsdp::kernels::ops {

// Returns an error if the scales' shape does not fit.
inline Result<ScaleMap> quantization_map(const Attributes& a, const TensorDesc& x,
                                         const TensorDesc& scale) {
  return ScaleMap::make(x.shape, scale.shape, a.i("axis", 1), a.i("block_size", 0));
}

struct FakeQuantization {
  // REQUIRES: infer has accepted the operands.
  FakeQuantization(const Attributes& a, const TensorDesc& x, const TensorDesc& scale)
      : map(*quantization_map(a, x, scale)),
        lo(a.i("lo", -128)),
        hi(a.i("hi", 127)),
        count(a.i("count", map.shared_by())) {}

  IntegerRange range() const { return {static_cast<float>(lo), static_cast<float>(hi)}; }
  // Returns the factor that multiplies a scale's summed slopes.
  double step() const {
    return 1 / std::sqrt(std::max(static_cast<double>(count), 1.0) * static_cast<double>(hi));
  }

  ScaleMap map;
  int64_t lo, hi, count;
};

}  // namespace ofsdp::kernels::ops
