// ScaleMap: the index of the scale (and zero point) of each element of a quantized tensor.
//
//   one scale         scales of one element
//   a scale an index  of `axis`; scales [shape[axis]]
//   blocked           `block_size` neighbours along `axis` share; scales have the tensor's shape
//                     but for ceil(shape[axis] / block_size) there
//
// A row is a run of elements that share a scale (`step` 0) or have consecutive scales (`step` 1).
// Kernels of a GPU use the functions too.
// https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "kernels/base/formula.h"
#include "kernels/base/status.h"
#include "kernels/core/shape.h"

namespace ofsdp::kernels {

class ScaleMap {
 public:
  struct Row {
    int64_t first, count;  // elements
    int64_t scale;         // of the first
    int64_t step;          // 0: the same for all
  };

  struct Sharing {  // `count` elements, which lie in runs of `run` that begin `stride` apart
    OFSDP_HD int64_t element(int64_t j) const { return first + j / run * stride + j % run; }
    int64_t count, first, run, stride;
  };

  // `axis` may count from the end. A vector has no other axis than 0.
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
    return input_error("expected scales {} for {} (axis {}, blocks of {}), found {}",
                       expected.text(), shape.text(), at, map.block_, scales.text());
  }

  OFSDP_HD int64_t scales() const { return scales_; }
  OFSDP_HD int64_t elements() const { return outer_ * axis_ * inner_; }
  int64_t shared_by() const { return elements() / std::max<int64_t>(scales_, 1); }

  OFSDP_HD int64_t index(int64_t element) const {
    if (block_ == 0) return 0;
    const int64_t at = element / inner_ % axis_;
    if (!blocked_) return at;
    return (element / inner_ / axis_ * blocks() + at / block_) * inner_ + element % inner_;
  }

  // From each multiple of `run` on, as many elements have one scale (`step` 0), or scales one after
  // the other (1).
  int64_t run() const {
    if (block_ == 0) return kRow;
    if (inner_ > 1) return inner_;
    return blocked_ ? std::gcd(axis_, block_) : axis_;
  }
  OFSDP_HD int64_t step() const { return block_ != 0 && (inner_ > 1) == blocked_ ? 1 : 0; }

  // The elements that have scale k.
  OFSDP_HD Sharing sharing(int64_t k) const {
    if (block_ == 0) return {inner_, 0, inner_ + 1, 0};
    if (!blocked_) return {outer_ * inner_, k * inner_, inner_, axis_ * inner_};
    const int64_t at = k / inner_ % blocks() * block_, left = axis_ - at;
    const int64_t first = (k / inner_ / blocks() * axis_ + at) * inner_ + k % inner_;
    return {left < block_ ? left : block_, first, 1, inner_};
  }
  int64_t most_sharing() const { return scales_ == 0 ? 0 : sharing(0).count; }

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
  static constexpr int64_t kRow = 4096;  // elements of a row where all have one scale

  OFSDP_HD int64_t blocks() const { return (axis_ + block_ - 1) / block_; }

  int64_t outer_ = 1, axis_ = 1, inner_ = 1;
  int64_t block_ = 0;  // of the axis; 0: one scale for all
  bool blocked_ = false;
  int64_t scales_ = 1;
};

}  // namespace ofsdp::kernels
