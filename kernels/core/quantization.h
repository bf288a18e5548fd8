// ScaleMap finds the scale (and zero point) for each element of a quantized tensor.
//
//   one scale         one for all elements
//   one per index     along `axis`; scales [shape[axis]], or with axes of size 1 around it that
//                     broadcast to it
//   blocked           `block_size` neighbours along `axis` share one; scales have the tensor's
//                     shape, but ceil(shape[axis] / block_size) along `axis`; if that is 1, they
//                     may lack the axis
//
// A row is a run of neighbouring elements that share a scale (`step` 0) or have consecutive scales
// (`step` 1); kernels on CPUs go through rows. Elements have row-major indices. GPU kernels use
// these functions too. https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "kernels/base/formula.h"
#include "kernels/base/status.h"
#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

class ScaleMap {
 public:
  struct Row {
    int64_t first, count;  // elements
    int64_t scale;         // for the first element
    int64_t step;          // 0: all elements share `scale`
  };

  struct Sharing {  // `count` elements, in runs of `run` that begin `stride` apart
    OFSDP_HD int64_t element(int64_t j) const { return first + j / run * stride + j % run; }
    int64_t count, first, run, stride;
  };

  // `axis` may be negative, which counts from the last axis; for a vector it is ignored.
  static Result<ScaleMap> make(const Shape& shape, const Shape& scales, int64_t axis,
                               int64_t block_size) {
    ScaleMap map;
    map.inner_ = shape.numel();
    map.scales_ = scales.numel();
    if (map.scales_ == 1 && block_size == 0) return map;
    OFSDP_ASSIGN_OR_RETURN(const int at,
                           normalize_axis(shape.rank() == 1 ? 0 : axis, shape.rank()));
    map.outer_ = shape.numel(0, at);
    map.axis_ = shape[at];
    map.inner_ = shape.numel(at + 1, shape.rank());
    map.block_ = block_size == 0 ? 1 : block_size;
    map.blocked_ = block_size != 0;
    Shape expected{map.axis_};
    if (map.blocked_) {
      expected = shape;
      expected[at] = map.blocks();
    }
    if (scales == expected && map.block_ > 0) return map;
    if (map.blocked_ && map.block_ >= map.axis_ && scales == without_axis(shape, at)) return map;
    const int own = scales.rank() - shape.rank() + at;  // the axis, among the scales' own
    if (!map.blocked_ && own >= 0 && scales[own] == map.axis_ && map.scales_ == map.axis_)
      return map;
    return input_error("expected scales {} for {} (axis {}, blocks of {}), found {}",
                       expected.text(), shape.text(), at, map.block_, scales.text());
  }

  OFSDP_HD int64_t scales() const { return scales_; }
  OFSDP_HD int64_t elements() const { return outer_ * axis_ * inner_; }
  // Returns the mean number of elements that share a scale.
  int64_t shared_by() const { return elements() / std::max<int64_t>(scales_, 1); }

  // Returns the index of the element's scale.
  OFSDP_HD int64_t index(int64_t element) const {
    if (block_ == 0) return 0;
    const int64_t at = element / inner_ % axis_;
    if (!blocked_) return at;
    return (element / inner_ / axis_ * blocks() + at / block_) * inner_ + element % inner_;
  }

  // Returns a length for parts of rows: from each multiple of it to the next, elements lie in one
  // row. `row(r).count` may be a multiple of it.
  int64_t run() const {
    if (block_ == 0) return kRow;
    if (inner_ > 1) return inner_;
    return blocked_ ? std::gcd(axis_, block_) : axis_;
  }
  OFSDP_HD int64_t step() const { return block_ != 0 && (inner_ > 1) == blocked_ ? 1 : 0; }

  // Returns the elements that have scale k.
  OFSDP_HD Sharing sharing(int64_t k) const {
    if (block_ == 0) return {inner_, 0, inner_ + 1, 0};  // one run, longer than all elements
    if (!blocked_) return {outer_ * inner_, k * inner_, inner_, axis_ * inner_};
    const int64_t at = k / inner_ % blocks() * block_, left = axis_ - at;
    const int64_t first = (k / inner_ / blocks() * axis_ + at) * inner_ + k % inner_;
    return {left < block_ ? left : block_, first, 1, inner_};
  }
  // Returns the largest count of elements that share a scale.
  int64_t most_sharing() const { return scales_ == 0 ? 0 : sharing(0).count; }

  // Rows in the order of the elements: rows() of them.
  int64_t rows() const {
    if (block_ == 0) return (inner_ + kRow - 1) / kRow;
    if (inner_ == 1) return blocked_ ? outer_ * blocks() : outer_;
    return outer_ * axis_;
  }

  Row row(int64_t r) const {
    if (block_ == 0) return {r * kRow, std::min(kRow, inner_ - r * kRow), 0, step()};
    if (inner_ == 1 && !blocked_) return {r * axis_, axis_, 0, step()};
    if (inner_ == 1) {
      const int64_t at = r % blocks() * block_;
      return {r / blocks() * axis_ + at, std::min(block_, axis_ - at), r, step()};
    }
    const int64_t scale =
        blocked_ ? (r / axis_ * blocks() + r % axis_ / block_) * inner_ : r % axis_;
    return {r * inner_, inner_, scale, step()};
  }

 private:
  static constexpr int64_t kRow = 4096;  // elements in a row if all share one scale

  static Shape without_axis(const Shape& shape, int axis) {
    std::vector<int64_t> axes = shape.axes();
    axes.erase(axes.begin() + axis);
    return Shape(axes);
  }

  OFSDP_HD int64_t blocks() const { return (axis_ + block_ - 1) / block_; }

  int64_t outer_ = 1, axis_ = 1, inner_ = 1;
  int64_t block_ = 0;  // along the axis; 0: one scale for all
  bool blocked_ = false;
  int64_t scales_ = 1;
};

// Fake quantization: rounds to a quantized tensor's integers and back, in float32.
//
//   q = round(x / scale) + zero_point, half to even
//   y = (clamp(q, lo, hi) - zero_point) * scale
//   slope along x: 1 if lo <= q <= hi, else 0
//   slope along scale: round(x / scale) - x / scale if lo <= q <= hi,
//     else lo - zero_point or hi - zero_point
//
// NaN stays NaN: comparisons with it are false.
// https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html, https://arxiv.org/abs/1902.08153 (LSQ)

struct IntegerRange {
  float lo, hi;
};

OFSDP_HD float fake_quantized(float x, float scale, float zero, IntegerRange range) {
  float q = rintf(x / scale) + zero;
  q = q < range.lo ? range.lo : q;
  q = q > range.hi ? range.hi : q;
  return (q - zero) * scale;
}

// Returns dy times the slope along x.
OFSDP_HD float fake_quantized_grad(float dy, float x, float scale, float zero, IntegerRange range) {
  const float q = rintf(x / scale) + zero;
  return q < range.lo || q > range.hi ? 0.0f : dy;
}

// Returns the slope of y along scale; callers multiply it by dy and add it up over the elements
// that share the scale.
OFSDP_HD float fake_quantized_scale_slope(float x, float scale, float zero, IntegerRange range) {
  const float ratio = x / scale;
  const float rounded = rintf(ratio), q = rounded + zero;
  const float low = q < range.lo ? range.lo - zero : rounded - ratio;
  return q > range.hi ? range.hi - zero : low;
}

}  // namespace ofsdp::kernels
